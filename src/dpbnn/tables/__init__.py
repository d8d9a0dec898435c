"""From a file with a table to numbers that a network can take, by what is public about its columns.

schema     what is public: columns, ranges, categories, the target, whose row it is
reading    a CSV or Parquet file as columns of text
encoding   columns as numbers between -1 and 1: clipped, scaled, one for each category
settings   how to train, chosen from public facts; terms: what that buys, costs and promises
training   a network on numbers between -1 and 1, for tables and estimators alike
fitting    a private model from a file, through interruptions
model      the release, and how rows become what it takes
reporting  predictions as columns, figures with a caution
"""

from dpbnn._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
