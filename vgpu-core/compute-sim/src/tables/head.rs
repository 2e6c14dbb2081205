//! The first part of docs/compute-accuracy.md: what is simulated, and the goals.

pub(super) const HEAD: &str = "\
# How exact compute shares are

Written by `bench/run.sh compute`. [compute.md](compute.md) says what is promised, and how it works. Here laws that share \
a GPU's time run in a simulation with a clock of its own, so the figures are the same on every machine; the \
[last part](#in-real-time) is the library in real time. A real GPU differs from both, and `make gpu-check` measures by how \
much.

| column | law |
|---|---|
| hardware | none: the GPU's slices alone |
| today | the modules that decide (`vgpu-core/src/compute`), with events and credit as the library has them |
| measured | \"measured time\", which is proposed and not called by the library yet: launches in flight are bounded by acknowledgements, \
and measured time is charged, without estimates of lengths (`vgpu-core/src/compute/measured`) |

The simulated GPU runs one context at a time. Contexts that have work change every 2 ms, and a change takes 100 us. \
Streams of a context run at once as far as their kernels fit on the multiprocessors; copies run beside them; a stream stops \
for 1.5 us at an event.

CPU time: 4 us for a launch, 8 us for the return of a wait, 1.5 us to record an event, 0.5 us to ask \
for it, 1 us for a distance of two, 0.8 us for a look at others' pages; a thread that sleeps wakes up 60 us late. A launch \
takes 65 ns of today's law on credit and 465 ns if it asks, 12 ns and 262 ns of the measured law; the last two were not \
measured yet. Kernels are up to 5 % longer or shorter, where nothing else is said. Figures count from the third second on, \
in windows of 1 s, one every 50 ms. An error is the difference between a share's use of the GPU and its part, in points \
(percent of the GPU's time).

The tests of `vgpu-core/compute-sim` assert these goals, in runs that are shorter than those below. A figure in a column \
is asserted for that law instead of the goal; where it says no, nothing is.

| goal | figure | today | measured |
|---|---|---|---|
| one Guaranteed share, kernels of 500 us to 5 ms | mean error 0.3, worst window 1 point | yes | yes |
| one of 30 cores, kernels of 50 us | mean error 0.3, or 0.9 if it waits for each | yes | yes |
| two Balanced shares that always have work, kernels up to 5 ms | mean error 1, worst window 5 points, 96.9 % of the GPU \
used | 5.3 points | 3.3 points |
| 60 [pairs drawn by chance](#pairs-drawn-by-chance), of one set | mean error 1.6, worst window 7.5 points, 97 % of the GPU used | no | yes |
| eight shares, half of which wait for each kernel | at most 1 point less of the GPU used than by the hardware alone | yes \
| yes |
| a share that starts | has its part within 100 ms | yes | yes |
| a share of high priority beside seven others | p99 of a burst of 2 ms: 7 ms | 7.2 ms | 5.5 ms |
| a share of low priority beside one of high priority that always has work | 1 % | yes | yes |
| ranks of two jobs on the same two GPUs | 95 % of their steps on the hardware alone | 50 % | yes |
| four processes of a share beside one of another | 5 points apart | yes | yes |
| a share that ignores the limiter | 1 point more than from the hardware alone | yes | no |
| a process that is killed in its turn | others wait with nothing on the GPU for 100 ms at most | yes | yes |
| 70 with up to 64 streams beside 30 | 65 % | no | yes |
| 30 of whose launches one in 100 takes 1,000 times longer, beside 70 | 67 % for the 70 | no | yes |
| 10,000 grids | 99 % of the launches with one grid | no | yes |
| a neighbour of 90 beside [adversaries](#a-neighbour-of-90-beside-an-adversary-of-10) of 10 whose work can be held \
back | 80 % | no | yes |
| 16 short processes at once in a Guaranteed share of 10 | 10.3 % | no | yes |
| [one share alone](#one-balanced-share-alone) | 99 % of its use without a law, charged within 2 points but where the CPU \
cannot keep the GPU busy, 1.05 events a ms | no | yes |

Events and calls cost time here since 2026-11-27. Before, today's law reached 5 points, 7 ms and 95 % in the three rows \
that say otherwise.

What no limiter can do from outside of the kernels: stop one. A kernel of 500 ms in a share of 10 cores is 40 points over \
in the second in which it runs; the mean holds. A program that leaves its own turn idle, because it waits for each short \
kernel, uses less than its part: the time that it keeps is counted as its own (`50 us, waits` below).
";
