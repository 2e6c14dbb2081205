//! Measures the evaluation of selectors: `cargo run --release -p vgpu-bench --bin bench-selectors`.

use std::hint::black_box;
use std::time::Instant;

use vgpu_cel::{Attribute, Device, Quantity, compile};

const ROUNDS: u32 = 200_000;

fn main() {
    let mut device = Device {
        driver: "dra.vgpu".into(),
        ..Device::default()
    };
    device.attributes.insert("type".into(), Attribute::String("gpu".into()));
    device
        .attributes
        .insert("model".into(), Attribute::String("H100".into()));
    device
        .attributes
        .insert("driverVersion".into(), Attribute::Version("535.161.8".into()));
    if let Ok(memory) = Quantity::parse("80Gi") {
        device.capacity.insert("memory".into(), memory);
    }
    for expression in [
        r#"device.driver == "dra.vgpu""#,
        r#"device.driver == "dra.vgpu" && device.attributes["dra.vgpu"].type == "gpu""#,
        r#"device.driver == "dra.vgpu" && device.attributes["dra.vgpu"].type == "gpu" && device.capacity["dra.vgpu"].memory.compareTo(quantity("20Gi")) >= 0"#,
        r#"device.attributes["dra.vgpu"].?model.orValue("none") in ["H100", "H200"] && device.attributes["dra.vgpu"].driverVersion.compareTo(semver("535.0.0")) >= 0"#,
        r#"device.attributes["dra.vgpu"].model.matches("^H[12]00")"#,
    ] {
        let begin = Instant::now();
        let program = match compile(expression) {
            Ok(program) => program,
            Err(why) => return eprintln!("{expression}: {why}"),
        };
        let compiling = begin.elapsed();
        let begin = Instant::now();
        for _ in 0..ROUNDS {
            let _ = black_box(program.matches(black_box(&device)));
        }
        let one = begin.elapsed() / ROUNDS;
        println!("{one:?} a match, {compiling:?} to compile: {expression}");
    }
}
