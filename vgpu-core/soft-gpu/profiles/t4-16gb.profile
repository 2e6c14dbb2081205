# One small GPU of an older kind: 40 multiprocessors, and a context that takes about 100 MiB.
name = Software GPU T4-16GB
gpus = 1
memory = 14920MiB
reserved = 440MiB
granularity = 2MiB
context_cost = 106MiB
sms = 40
compute_capability = 7.5
driver_version = 550.163.01
cuda_version = 12.4
mig_product = none
