"""The boundary, `add_noise`, and the secret draws: noise, Poisson sampling, masks."""
