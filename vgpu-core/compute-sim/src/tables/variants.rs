//! The limiter with a single part changed or left out, to show what each part is for.

use vgpu_compute_sim::figures::Error;
use vgpu_compute_sim::hardware::Hardware;
use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::scenarios::adversaries::{killed_again_and_again, long_kernels_in_threads};
use vgpu_compute_sim::scenarios::costs::waits_alone;
use vgpu_compute_sim::scenarios::drawn::drawn_pairs;
use vgpu_compute_sim::scenarios::others::{dead_holders, ranks};
use vgpu_compute_sim::scenarios::parts::{Summary, pairs};
use vgpu_compute_sim::{MS, S, US};
use vgpu_core::compute::limiter::config::Config;

use super::request::{Request, list};

/// Returns the law as it is, and with each single part changed or left out, by name.
fn choices() -> Vec<(&'static str, Config)> {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config
    };
    vec![
        ("as proposed", Config::default()),
        ("16 in flight", with(|it| (it.most, it.most_capped) = (16, 16))),
        ("64 in flight beside others", with(|it| it.most = 64)),
        ("500 us ahead", with(|it| it.ahead = 500 * US)),
        ("never alone", with(|it| it.has_alone = false)),
        ("alone 40 ms ahead", with(|it| it.ahead_alone = 40 * MS)),
        ("a mean of 20 ms", with(|it| it.memory = 20 * MS)),
        ("an event behind 8", with(|it| it.every = 8)),
        ("no samples", with(|it| it.has_samples = false)),
        ("no spinning", with(|it| it.spin = 0)),
        ("ranks as others", with(|it| it.ahead_ranks = 2 * MS)),
        ("ranks do not give up", with(|it| it.gives_up = None)),
        ("ranks do not cut", with(|it| it.siblings_cut = false)),
        ("10 s a burial", with(|it| it.burial = None)),
    ]
}

pub(super) fn variants(request: &Request) {
    let set = request.sets[0];
    println!(
        "Six pairs, and drawn pairs of set {set}: mean error, worst window, use. Crossed ranks: steps/s. Killed holders: longest \
         wait in ms. 10 cores with 32 threads of 12 s kernels, and killed after each kernel of 3 s: use. 20 us, waits, \
         alone: ns of CPU for each launch.\n"
    );
    println!("| limiter, with | six pairs | drawn pairs | ranks | holders | threads | killed | CPU |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, config) in choices() {
        let law = LawKind::Limited(config);
        let in_goal = pairs().into_iter().filter(|pair| pair.in_goal);
        let six: Vec<[Error; 2]> = in_goal
            .flat_map(|pair| [30, 10].map(|cores| pair.run(law, Hardware::default(), cores)))
            .collect();
        let (threads, _) = long_kernels_in_threads(law, 10, 12 * S, 100 * S);
        println!(
            "| {name} | {} | {} | {} | {:.1} | {threads:.1} | {:.1} | {:.0} |",
            summary(&six),
            summary(&drawn_pairs(law, set)),
            list(&ranks(law, 2, true)),
            dead_holders(law),
            killed_again_and_again(law, 3 * S, 2900 * MS, 300 * S),
            waits_alone(law).cpu,
        );
    }
}

fn summary(pairs: &[[Error; 2]]) -> String {
    let Summary { mean, worst, used, .. } = Summary::of(pairs);
    format!("{mean:.2}, {worst:.1}, {used:.1}")
}
