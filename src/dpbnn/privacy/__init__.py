"""The plan, the sampling, the noise and the guarantee: everything that the promise rests on."""
