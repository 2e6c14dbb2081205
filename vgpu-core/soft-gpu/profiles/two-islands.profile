# Eight GPUs in two islands of four, with nothing but PCI Express between them.
gpus = 8
nvlink = 0-3, 4-7
