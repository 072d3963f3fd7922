"""FedPower (Guo et al. 2021): private SVD and PCA."""
