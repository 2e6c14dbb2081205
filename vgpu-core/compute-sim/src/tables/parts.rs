//! Tables of the shares' use compared with their entitlement.

use vgpu_compute_sim::figures::Error;
use vgpu_compute_sim::hardware::Hardware;
use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::scenarios::drawn::{GATE, PAIRS, drawn_pairs};
use vgpu_compute_sim::scenarios::others::{
    Unseen, best_effort, dead_holders, four_processes, guaranteed_beside_balanced, guaranteed_beside_one_that_ignores,
    low_beside_high, mostly_idle, one_ignores, ranks, start_delay,
};
use vgpu_compute_sim::scenarios::parts::{Many, Summary, cap, latencies, many, pairs};
use vgpu_compute_sim::{MS, US};

use super::rows::{LAWS, head, length, list, row};

pub(super) fn caps() {
    const CORES: [u32; 7] = [5, 10, 30, 50, 70, 90, 95];
    println!("## One Guaranteed share, alone\n");
    println!("Points of the GPU's time: mean error with its sign, and the worst window of 1 s.\n");
    println!("limiter:\n");
    let cores = CORES.map(|cores| format!("cores {cores}")).join(" | ");
    println!("| kernels | {cores} |\n|---|{}", "---|".repeat(CORES.len()));
    for kernel in [5 * US, 50 * US, 500 * US, 5 * MS, 50 * MS, 500 * MS] {
        for is_waiting in [false, true] {
            let cells = CORES.map(|cores| {
                let error = cap(LawKind::Limiter, cores, kernel, is_waiting);
                format!("{:+.2}, {:.1}", error.signed, error.worst())
            });
            let waits = if is_waiting { ", waits for each" } else { "" };
            println!("| {}{waits} | {} |", length(kernel), cells.join(" | "));
        }
    }
    println!();
}

pub(super) fn pair_tables() {
    println!("## Two Balanced shares that always have work\n");
    println!("Use of each in percent of the GPU's time; mean error and worst window in points.\n");
    for (name, law) in LAWS {
        println!("{name}:\n");
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
        let Summary { mean, worst, used, .. } = Summary::of(&counted);
        println!("\nThe first six pairs: mean error {mean:.2}, worst window {worst:.1}, use {used:.1} %.\n");
    }
}

pub(super) fn drawn() {
    println!("## Pairs drawn by chance\n");
    println!(
        "Sets of {PAIRS} pairs: 1 to 4 lengths from 5 us to 10 ms, 1 to 8 streams, 5 to 50 cores beside the rest. Mean error; \
         worst window, mean of the shares and worst of all; use of the GPU. Tests use set {GATE}.\n"
    );
    head("set");
    for set in [GATE, 2, 3, 4, 5] {
        row(&set.to_string(), |law| {
            let summary = Summary::of(&drawn_pairs(law, set));
            let Summary {
                mean,
                mean_worst,
                worst,
                used,
            } = summary;
            format!("{mean:.2}; {mean_worst:.1}, {worst:.1}; {used:.1} %")
        });
    }
    println!();
}

pub(super) fn many_table() {
    println!("## Several equal shares, half of which wait for each kernel\n");
    println!("Mean error, Jain's index, use of the GPU.\n");
    head("shares");
    for count in [2, 4, 8] {
        row(&count.to_string(), |law| {
            let Many { mean_error, jain, used } = many(law, count);
            format!("{mean_error:.2}, {jain:.3}, {used:.1} %")
        });
    }
    println!();
}

pub(super) fn bursts() {
    println!("## A burst of 2 ms every 20 ms, cores 20, beside shares that always have work\n");
    println!("Latency in ms, p50 and p99.\n");
    head("beside");
    for is_high in [false, true] {
        for beside in [1, 3, 7] {
            let as_high = if is_high { ", as High" } else { "" };
            row(&format!("{beside}{as_high}"), |law| {
                let (p50, p99) = latencies(law, beside, is_high);
                format!("{p50:.1}, {p99:.1}")
            });
        }
    }
    println!();
}

pub(super) fn slices() {
    println!("## What depends on the hardware\n");
    println!("500 us / 500 us at 30 / 70: use of each, and the sum.\n");
    head("slice, switch");
    let pair = &pairs()[1];
    for slice in [MS, 2 * MS, 6 * MS] {
        for switch in [20 * US, 100 * US, 300 * US] {
            row(&format!("{}, {}", length(slice), length(switch)), |law| {
                let hardware = Hardware {
                    slice,
                    switch,
                    ..Hardware::default()
                };
                let [a, b] = pair.run(law, hardware, 30).map(|error| error.use_percent);
                format!("{a:.1} / {b:.1} = {:.1}", a + b)
            });
        }
    }
    println!();
}

pub(super) fn others() {
    println!("## Priorities, starts, deaths, ranks\n");
    println!("Use in percent where nothing else is said.\n");
    head("scenario");
    row(
        "Low beside High that always has work, 50 cores each: use of Low, its longest wait",
        |law| {
            let (low, wait) = low_beside_high(law);
            format!("{low:.1}, {wait:.0} ms")
        },
    );
    for kernel in [500 * US, 5 * US, 50 * MS] {
        let what = format!(
            "70 starts beside 30 with kernels of {}: has its part after",
            length(kernel)
        );
        row(&what, |law| {
            start_delay(law, kernel).map_or("never".into(), |ms| format!("{ms} ms"))
        });
    }
    row("one job of two ranks over two GPUs, steps/s", |law| {
        list(&ranks(law, 1, false))
    });
    row("two such jobs", |law| list(&ranks(law, 2, false)));
    row("two such jobs, crossed", |law| list(&ranks(law, 2, true)));
    for of in [Unseen::NotFlagged, Unseen::Flagged] {
        let known = if of == Unseen::Flagged {
            ", and the node says so"
        } else {
            ""
        };
        row(
            &format!("30, 30, 30, and one of 10 that ignores the limiter{known}"),
            |law| list(&one_ignores(law, of)),
        );
        row(
            &format!("Guaranteed 30 beside one that ignores the limiter{known}"),
            |law| list(&guaranteed_beside_one_that_ignores(law, of)),
        );
    }
    row("Guaranteed 10 beside Balanced 90; worst window of the first", |law| {
        let (uses, error) = guaranteed_beside_balanced(law);
        format!("{}; {:.1}", list(&uses), error.worst())
    });
    row("four processes of one share beside one of another, 50 each", |law| {
        list(&four_processes(law))
    });
    row("30 beside cores 0; 30 and 70 beside cores 0", |law| {
        let (one, two) = best_effort(law);
        format!("{}; {}", list(&one), list(&two))
    });
    row("30 beside 30 that is mostly idle", |law| list(&mostly_idle(law)));
    row("40 holders of a turn killed: longest wait of the other share", |law| {
        format!("{:.1} ms", dead_holders(law))
    });
    println!();
}
