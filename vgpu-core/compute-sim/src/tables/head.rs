//! The first part of docs/compute-accuracy.md: the model, and the goals.

pub(super) const HEAD: &str = "\
# How exact compute shares are

Written by `bench/run.sh compute`. [compute.md](compute.md) says what is promised, and how it works. Here the modules that \
decide run in a simulation with a clock of its own, so the figures are the same on every machine; the \
[last part](#in-real-time) is the library in real time. A real GPU differs from both, and `make gpu-check` measures by how \
much.

| column | who decides |
|---|---|
| hardware | nobody: the GPU's slices alone |
| limiter | `vgpu-core/src/compute`, called as the library calls it |

The simulated GPU runs one context at a time. Contexts that have work change every 2 ms, and a change takes 100 us. \
Streams of a context run at once as far as their kernels fit on the multiprocessors; copies run beside them; a stream stops \
for 1.5 us at an event.

CPU time: 4 us for a launch, 8 us for the return of a wait, 1.5 us to record an event, 0.5 us to ask \
for it, 1 us for a distance of two, 0.8 us for a look at others' pages; a thread that sleeps wakes up 60 us late. A launch \
takes 12 ns of the limiter within its budget and 262 ns if it asks. Kernels are up to 5 % longer or shorter, where nothing else is said. Figures count from the third second on, \
in windows of 1 s, one every 50 ms. An error is the difference between a share's use of the GPU and its part, in points \
(percent of the GPU's time).

The tests of `vgpu-core/compute-sim` assert these goals, in runs that are shorter than those below. A figure in the last \
column is asserted instead of a goal that is not reached.

| goal | figure | reached |
|---|---|---|
| one Guaranteed share, kernels of 500 us to 5 ms | mean error 0.3, worst window 1 point | yes |
| one of 30 cores, kernels of 50 us | mean error 0.3, or 0.9 if it waits for each | yes |
| two Balanced shares that always have work, kernels up to 5 ms | mean error 1, worst window 5 points, 96.9 % of the GPU \
used | yes: 3.3 points |
| 60 [pairs drawn by chance](#pairs-drawn-by-chance), of one set | mean error 1.6, worst window 7.5 points, 97 % of the GPU used | yes |
| eight shares, half of which wait for each kernel | at most 1 point less of the GPU used than by the hardware alone | yes |
| a share that starts | has its part within 100 ms | yes |
| a share of high priority beside seven others | p99 of a burst of 2 ms: 7 ms | yes: 5.5 ms |
| a share of low priority beside one of high priority that always has work | 1 % | yes |
| ranks of two jobs on the same two GPUs | 95 % of their steps on the hardware alone | yes |
| four processes of a share beside one of another | 5 points apart | yes |
| a share of 10 that ignores the limiter, beside three of 30 | 1 point more than from the hardware alone, 24 | no: 32 when the node \
says so, 51 until then |
| a process that is killed in its turn | others wait with nothing on the GPU for 100 ms at most | yes |
| 70 with up to 64 streams beside 30 | 65 % | yes |
| 30 of whose launches one in 100 takes 1,000 times longer, beside 70 | 67 % for the 70 | yes |
| a neighbour of 90 beside [adversaries](#a-neighbour-of-90-beside-an-adversary-of-10) of 10 whose work can be held \
back | 80 % | yes |
| 16 short processes at once in a Guaranteed share of 10 | 10.3 % | yes |
| [one share alone](#one-balanced-share-alone) | 99 % of its use without a limiter, charged within 2 points but where the CPU \
cannot keep the GPU busy, 1.05 events a ms | yes |

The law before this one, which predicted each launch by its shape, is in this page up to commit c009b48: 60 pairs drawn by \
chance had a mean error of 4.6 points and a worst window of 58.6.

What no limiter can do from outside of the kernels: stop one. A kernel of 500 ms in a share of 10 cores is 40 points over \
in the second in which it runs; the mean holds. A program that leaves its own turn idle, because it waits for each short \
kernel, uses less than its part: the time that it keeps is counted as its own (`50 us, waits` below).
";
