//! Measures what one translation takes in process: `cargo run --release -p vgpu-dialects --example translate_time`.
//!
//! The goal is 100 us for each pod. Nothing is asserted: times depend on the machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;
use vgpu_dialects::{Pod, Settings, translate};

const ROUNDS: usize = 20_000;

fn main() {
    let uuids: Vec<String> = (0..128).map(|at| format!("GPU-{at:036}")).collect();
    let container = |name: String| {
        json!({"name": name, "image": "registry.example.com/train:1", "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}}})
    };
    let cases = [
        (
            "a pod that asks for nothing",
            json!({}),
            json!([{"name": "main", "resources": {"limits": {"cpu": "1"}}}]),
        ),
        ("one container of HAMi", json!({}), json!([container("main".into())])),
        (
            "KAI's fraction",
            json!({"gpu-fraction": "0.5"}),
            json!([{"name": "main"}]),
        ),
        (
            "ten containers, 128 UUIDs",
            json!({"nvidia.com/use-gpuuuid": uuids.join(",")}),
            (0..10).map(|at| container(format!("c{at}"))).collect(),
        ),
    ];
    for (name, annotations, containers) in cases {
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers}});
        let text = pod.to_string();
        let pod: Pod = serde_json::from_value(pod).unwrap_or_default();
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| timed(|| drop(black_box(translate(&pod, &Settings::default())))))
            .collect();
        let parse = || drop(black_box(serde_json::from_str::<Pod>(&text)));
        let mut parses: Vec<Duration> = (0..ROUNDS).map(|_| timed(parse)).collect();
        times.sort_unstable();
        parses.sort_unstable();
        let at = |times: &[Duration], percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
        println!(
            "{name}: translate p50 {:.1} us, p99 {:.1} us; parse p50 {:.1} us",
            at(&times, 50),
            at(&times, 99),
            at(&parses, 50)
        );
    }
}

fn timed(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}
