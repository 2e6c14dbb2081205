//! Prints docs/compute-accuracy.md.

use vgpu_compute_sim::figures::Error;
use vgpu_compute_sim::gpu::Hardware;
use vgpu_compute_sim::scenarios::*;
use vgpu_compute_sim::world::Law;
use vgpu_compute_sim::{MS, Ns, US};

const HEAD: &str = "\
# How exact compute shares are

Written by `bench/run.sh compute`. [compute.md](compute.md) says what is promised, and how it works. Here the modules that \
decide (`vgpu-core/src/compute`) run in a simulation with a clock of its own, so the figures are the same on every machine; \
the [last part](#in-real-time) is the library in real time. A real GPU differs from both, and `make gpu-check` measures by \
how much.

The simulated GPU runs one context at a time. Contexts that have work change every 2 ms, and a change takes 100 us. A \
launch takes 4 us of CPU time, the return of a wait 8 us, and a thread that sleeps wakes up 60 us late. Kernels are up to \
5 % longer or shorter, where nothing else is said. Figures count from the third second on, in windows of 1 s, one every \
50 ms. An error is the difference between a share's use of the GPU and its part, in points (percent of the GPU's time).

The tests of `vgpu-core/compute-sim` assert these goals:

| goal | figure |
|---|---|
| one Guaranteed share, kernels up to 5 ms | mean error 0.3, worst window 1 point |
| two Balanced shares that always have work, kernels up to 5 ms | mean error 1, worst window 5 points, 97 % of the GPU used |
| eight shares, half of which wait for each kernel | at most 1 point less of the GPU used than by the hardware alone |
| a share that starts | has its part within 100 ms |
| a share of high priority beside seven others | p99 of a burst of 2 ms: 7 ms |
| a share of low priority beside one of high priority that always has work | 1 % |
| ranks of two jobs on the same two GPUs | 95 % of their steps on the hardware alone |
| a process that is killed in its turn | others wait for 150 ms at most |

What no limiter can do from outside of the kernels: stop one. A kernel of 500 ms in a share of 10 cores is 40 points over \
in the second in which it runs; the mean holds. A program that leaves its own turn idle, because it waits for each short \
kernel, uses less than its part: the time that it keeps is counted as its own (`50 us, waits` below).
";

fn main() {
    println!("{HEAD}");
    caps();
    pair_table();
    many_table();
    latencies();
    hardware_table();
    rest();
}

fn length(ns: Ns) -> String {
    if ns >= MS {
        format!("{} ms", ns as f64 / MS as f64)
    } else {
        format!("{} us", ns / US)
    }
}

fn name(law: Law) -> &'static str {
    match law {
        Law::Hardware => "hardware alone",
        Law::Turns => "turns",
    }
}

fn caps() {
    const CORES: [u32; 7] = [5, 10, 30, 50, 70, 90, 95];
    println!("## One Guaranteed share, alone\n");
    println!("Points of the GPU's time, in windows of 1 s: mean of the absolute error, and the worst.\n");
    println!(
        "| kernels | {} |",
        CORES.map(|cores| format!("cores {cores}")).join(" | ")
    );
    println!("|---|{}", "---|".repeat(CORES.len()));
    for kernel in [5 * US, 50 * US, 500 * US, 5 * MS, 50 * MS, 500 * MS] {
        for is_waiting in [false, true] {
            let cells = CORES.map(|cores| {
                let error = cap(cores, kernel, is_waiting);
                format!("{:.2}, {:.1}", error.mean, error.worst())
            });
            let waits = if is_waiting { ", waits for each" } else { "" };
            println!("| {}{waits} | {} |", length(kernel), cells.join(" | "));
        }
    }
    println!();
}

fn pair_table() {
    println!("## Two Balanced shares that always have work\n");
    println!("Use of each in percent of the GPU's time; mean error and worst window in points.\n");
    for law in [Law::Hardware, Law::Turns] {
        println!("{}:\n", name(law));
        println!("| kernels | cores | use | sum | mean error | worst window |\n|---|---|---|---|---|---|");
        let mut counted: Vec<[Error; 2]> = Vec::new();
        for pair in pairs() {
            for cores in [30, 10] {
                let errors = pair.run(law, Hardware::default(), cores);
                let [a, b] = errors;
                println!(
                    "| {} | {cores} / {} | {:.1} / {:.1} | {:.1} | {:.2} / {:.2} | {:.1} / {:.1} |",
                    pair.name,
                    100 - cores,
                    a.use_percent,
                    b.use_percent,
                    a.use_percent + b.use_percent,
                    a.mean,
                    b.mean,
                    a.worst(),
                    b.worst()
                );
                if pair.in_goal {
                    counted.push(errors);
                }
            }
        }
        let all = || counted.iter().flatten();
        let count = counted.len() as f64;
        println!(
            "\nThe first six pairs: mean error {:.2}, worst window {:.1}, use {:.1} %.\n",
            all().map(|error| error.mean).sum::<f64>() / count / 2.0,
            all().map(Error::worst).fold(0.0, f64::max),
            all().map(|error| error.use_percent).sum::<f64>() / count
        );
    }
}

fn many_table() {
    println!("## Several equal shares, half of which wait for each kernel\n");
    println!("| shares | law | mean error | Jain | use |\n|---|---|---|---|---|");
    for count in [2, 4, 8] {
        for law in [Law::Hardware, Law::Turns] {
            let Many { mean_error, jain, used } = many(law, count);
            println!(
                "| {count} | {} | {mean_error:.2} | {jain:.3} | {used:.1} % |",
                name(law)
            );
        }
    }
    println!();
}

fn latencies() {
    println!("## A burst of 2 ms every 20 ms, cores 20, beside shares that always have work\n");
    println!("Latency in ms, p50 and p99.\n");
    println!("| beside | hardware alone | turns | turns, as High |\n|---|---|---|---|");
    for beside in [1, 3, 7] {
        let text = |(p50, p99): (f64, f64)| format!("{p50:.1}, {p99:.1}");
        println!(
            "| {beside} | {} | {} | {} |",
            text(bursts(Law::Hardware, beside, false)),
            text(bursts(Law::Turns, beside, false)),
            text(bursts(Law::Turns, beside, true))
        );
    }
    println!();
}

fn hardware_table() {
    println!("## What depends on the hardware\n");
    println!("500 us / 500 us at 30 / 70.\n");
    println!("| slice | switch | law | use | sum |\n|---|---|---|---|---|");
    let pair = &pairs()[1];
    for slice in [MS, 2 * MS, 6 * MS] {
        for switch in [20 * US, 100 * US, 300 * US] {
            for law in [Law::Hardware, Law::Turns] {
                let hardware = Hardware {
                    slice,
                    switch,
                    ..Hardware::default()
                };
                let [a, b] = pair.run(law, hardware, 30).map(|error| error.use_percent);
                println!(
                    "| {} | {} | {} | {a:.1} / {b:.1} | {:.1} |",
                    length(slice),
                    length(switch),
                    name(law),
                    a + b
                );
            }
        }
    }
    println!();
}

fn rest() {
    let list = |values: Vec<f64>| {
        values
            .iter()
            .map(|value| format!("{value:.1}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    println!("## Other scenarios\n");
    println!("| scenario | hardware alone | turns |\n|---|---|---|");
    let (low, wait) = low_beside_high();
    println!(
        "| low priority beside high priority that always has work, 50 cores each: use, longest wait | | {low:.1} %, {wait:.0} ms |"
    );
    println!(
        "| a share of 70 starts beside one of 30: its share is reached after | | {} |",
        start_delay().map_or("never".into(), |ms| format!("{ms} ms"))
    );
    for crossed in [false, true] {
        println!(
            "| two jobs of two ranks over two GPUs{}, steps/s (one alone: {}) | {} | {} |",
            if crossed { ", crossed" } else { "" },
            list(ranks(Law::Hardware, 1, false)),
            list(ranks(Law::Hardware, 2, crossed)),
            list(ranks(Law::Turns, 2, crossed))
        );
    }
    println!(
        "| 30, 30, 30, and one of 10 that ignores the limiter: use | {} | {} |",
        list(one_ignores(Law::Hardware)),
        list(one_ignores(Law::Turns))
    );
    println!(
        "| four processes of one share beside one of another, 50 each: use | {} | {} |",
        list(four_processes(Law::Hardware)),
        list(four_processes(Law::Turns))
    );
    let (one, two) = best_effort();
    println!("| 30 beside one of cores 0: use | | {} |", list(one));
    println!("| 30 and 70 beside one of cores 0: use | | {} |", list(two));
    println!(
        "| 40 holders of a turn killed: longest wait of the other share | | {:.1} ms |",
        dead_holders()
    );
}
