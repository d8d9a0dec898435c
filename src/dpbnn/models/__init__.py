"""Networks, likelihoods and priors."""
