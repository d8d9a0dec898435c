"""Public data sets that the experiments run on: from disk, or downloaded.

>>> from dpbnn.data import load_images
>>> digits = load_images("mnist")  # doctest: +SKIP
>>> digits.x.shape  # doctest: +SKIP
torch.Size([60000, 1, 28, 28])
"""

from dpbnn.data.images import IMAGE_SETS, Images, load_images

__all__ = ["IMAGE_SETS", "Images", "load_images"]
