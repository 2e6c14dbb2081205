# What an H100 80GB does to accounting under a 550-series driver: NVML's total is 81559 MiB, the driver
# keeps some of it, and the first context of a process takes about half a GiB.
name = Software GPU H100-80GB
gpus = 2
memory = 81038MiB
reserved = 521MiB
granularity = 2MiB
context_cost = 518MiB
sms = 132
compute_capability = 9.0
driver_version = 550.163.01
cuda_version = 12.4
