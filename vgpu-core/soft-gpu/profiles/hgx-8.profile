# Eight GPUs, all joined by NVSwitches, as in an HGX H100.
gpus = 8
nvlink = 0-7
