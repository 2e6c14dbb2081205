//! Tables of programs with many streams, lengths or processes, of adversaries, and of a law's cost.

use vgpu_compute_sim::figures::Error;
use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::scenarios::adversaries::{
    Got, adversaries, killed_again_and_again, long_kernels_in_threads, waves_beside_one_that_waits,
};
use vgpu_compute_sim::scenarios::alone::{self, Kept};
use vgpu_compute_sim::scenarios::costs::loads;
use vgpu_compute_sim::scenarios::lengths::Mixture;
use vgpu_compute_sim::scenarios::processes::{self, after_an_end, end_with_work};
use vgpu_compute_sim::scenarios::real_programs::{decoder_beside_training, decoders, trainings};
use vgpu_compute_sim::scenarios::streams;
use vgpu_compute_sim::{MS, S, US};

use super::rows::{head, length, list, row};

pub(super) fn alone() {
    println!("## One Balanced share, alone\n");
    println!(
        "Use of the GPU in percent of the use without a law; charged less used, in percent of the GPU's time; events in a \
         ms; ns of CPU in the law for each launch.\n"
    );
    head("program");
    for program in alone::all() {
        row(program.name, |law| {
            if law == LawKind::Hardware {
                return "100".into();
            }
            let Kept {
                kept,
                charged_more,
                events,
                cpu,
            } = program.run(law);
            format!("{kept:.1}; {charged_more:+.1}; {events:.2}; {cpu:.0}")
        });
    }
    println!();
}

pub(super) fn streams_table() {
    println!("## Many streams\n");
    println!("Kernels of 200 us that take 100 or 25 % of the multiprocessors. Use in percent.\n");
    head("streams");
    for width in [100, 25] {
        for count in [1, 8, 64] {
            row(&format!("70 with {count} of {width} %, beside 30"), |law| {
                list(&streams::beside(law, count, width))
            });
        }
        row(&format!("Guaranteed 10, 8 of {width} %"), |law| {
            format!("{:.1}", streams::capped(law, width))
        });
    }
    println!();
}

pub(super) fn lengths() {
    println!("## Launches that look the same and differ\n");
    println!("Use of a Guaranteed share of 10 alone, its worst windows above and below; use of 30 beside 70.\n");
    head("launches");
    for (short, long, rare, seconds) in [
        (20 * US, MS, 20, 20),
        (5 * US, 5 * MS, 100, 20),
        (5 * US, 100 * MS, 1000, 60),
    ] {
        let mixture = Mixture { short, long, rare };
        row(&format!("{}, one in {rare} {}", length(short), length(long)), |law| {
            let error = mixture.capped(law, seconds * S);
            let beside = mixture.beside(law, seconds * S);
            let Error {
                use_percent,
                above,
                below,
                ..
            } = error;
            format!("{use_percent:.1}, {above:+.1} {below:+.1}; {}", list(&beside))
        });
    }
    println!();
}

fn said(got: &Got) -> String {
    format!("{:.1}, {:.1} ({:.1})", got.neighbour, got.below, got.adversary)
}

pub(super) fn adversary_table() {
    println!("## A neighbour of 90 beside an adversary of 10\n");
    println!("The neighbour's use in 60 s, and its worst window below its part; the adversary's use in brackets.\n");
    for (is_guaranteed, policy) in [(false, "Balanced"), (true, "Guaranteed")] {
        head(&format!("adversary, {policy}"));
        for adversary in adversaries() {
            row(adversary.name, |law| {
                let got = adversary.run(law, is_guaranteed, 60 * S);
                said(&got)
            });
        }
        for long in [5 * MS, 20 * MS] {
            let what = format!(
                "200 kernels of 20 us and 20 of {} in turns; the neighbour waits after each ten",
                length(long)
            );
            row(&what, |law| {
                said(&waves_beside_one_that_waits(law, long, is_guaranteed, 60 * S))
            });
        }
        println!();
    }
    println!("Guaranteed shares alone, that want more than their cores: use of the whole time.\n");
    head("adversary");
    for (cores, kernel) in [(10, 12 * S), (50, 3 * S)] {
        let what = format!(
            "cores {cores}, 32 threads with kernels of {}: first 100 s, 600 s",
            length(kernel)
        );
        row(&what, |law| {
            let (first, all) = long_kernels_in_threads(law, cores, kernel, 600 * S);
            format!("{first:.1}, {all:.1}")
        });
    }
    for (kernel, lives, whole) in [(3 * S, 2900 * MS, 300 * S), (30 * S, 29 * S, 600 * S)] {
        let what = format!(
            "cores 10, killed after {} of each kernel of {}",
            length(lives),
            length(kernel)
        );
        row(&what, |law| {
            format!("{:.1}", killed_again_and_again(law, kernel, lives, whole))
        });
    }
    println!();
}

pub(super) fn processes_table() {
    println!("## Processes of a Guaranteed share of 10\n");
    println!("Use in percent.\n");
    head("processes");
    for lanes in [1, 4, 16] {
        let what = format!("{lanes} at once that end after one kernel of 1 ms; charged; beside Balanced 90");
        row(&what, |law| {
            let short = processes::short(law, lanes);
            format!("{:.1}; {:.1}; {}", short.used, short.charged, list(&short.beside))
        });
    }
    for count in [8, 40, 64] {
        row(&format!("{count}, kernels of 1 ms, waits for each"), |law| {
            format!("{:.1}", processes::many(law, count, true).use_percent)
        });
        row(&format!("{count}, kernels of 1 ms; worst window"), |law| {
            let error = processes::many(law, count, false);
            format!("{:.1}; {:.1}", error.use_percent, error.worst())
        });
    }
    row("40 that end 700 ms after the launch of a kernel of 100 ms", |law| {
        format!("{:.1}", end_with_work(law))
    });
    for (normal, how) in [(true, "ends"), (false, "is killed")] {
        for cores in [10, 20] {
            let what =
                format!("one {how} with an unknown kernel in flight: how long the next one waits, cores {cores}");
            row(&what, |law| format!("{:.2} s", after_an_end(law, cores, normal)));
        }
    }
    println!();
}

pub(super) fn programs() {
    println!("## A decoder and training\n");
    println!(
        "A token is 300 kernels of 5 to 60 us and a wait; a step 120 kernels of 50 us to 2 ms, copies, and a pause.\n"
    );
    head("program");
    row("decoder: tokens/s alone; use", |law| {
        let decoder = decoders(law);
        format!("{:.1}; {:.1}", decoder.alone, decoder.alone_use)
    });
    row("two of 50: tokens/s each; use; p99", |law| {
        let decoder = decoders(law);
        format!("{:.1}; {:.1}; {:.1} ms", decoder.two, decoder.two_use, decoder.p99)
    });
    row("Guaranteed 30: use", |law| format!("{:.1}", decoders(law).capped));
    row("decoder of 70, beside training of 30: tokens/s; use", |law| {
        let (tokens, uses) = decoder_beside_training(law);
        format!("{tokens:.1}; {}", list(&uses))
    });
    for pause in [0, 10 * MS, 50 * MS] {
        let what = format!(
            "training, pause of {}: steps/s alone; two of 50, each; use",
            length(pause)
        );
        row(&what, |law| {
            let (alone, two, used) = trainings(law, pause);
            format!("{alone:.2}; {two:.2}; {used:.1}")
        });
    }
    println!();
}

pub(super) fn costs() {
    println!("## CPU time in the law\n");
    println!(
        "Launches/s of the first share; ns for each, and what is spun besides; events for each launch of both; use. Beside \
         others: 50 cores each.\n"
    );
    head("kernels");
    for load in loads() {
        row(load.name, |law| {
            let cost = load.run(law);
            format!(
                "{:.0}; {:.0} + {:.0}; {:.2}; {}",
                cost.launches,
                cost.cpu,
                cost.spun,
                cost.events,
                list(&cost.uses)
            )
        });
    }
    println!();
}
