//! What programs see, however they load the library, and which errors they get when they are refused.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use support::serve::Serving;
use support::{Bench, GIB, dist};
use vgpu_abi::ledger;
use vgpu_abi::limits::{ComputePolicy, Limits};
use vgpu_abi::paths::{LEDGER, LIMITS};

#[test]
fn a_gpu_without_a_share_does_not_exist() {
    let bench = Bench::new();
    bench.share("share", 0, 1, 7 * GIB);
    let shown = bench.run(&["init", "devices", "memory"]);
    let words: Vec<&str> = shown[1].split(' ').collect();
    let bare = bench.gpu(1).trim_start_matches("GPU-").replace('-', "");
    assert_eq!(words[1..6], ["0", "1", "0", &bare, &(7 * GIB).to_string()]);
    assert_eq!(words[6], "101", "there is no second device");
    assert_eq!(shown[2], format!("memory 0 1 {} {} 0", bench.gpu(1), 7 * GIB));
    let shown = bench.run(&["init", "alloc:1", "ordinal:0", "memory", "topology", "shutdown"]);
    assert_eq!(shown[2], "ordinal 0 0 0 0");
    assert_eq!(shown[4], "topology 0 1");
    assert_eq!(shown[5], "shutdown 0 1", "uninitialised again");
}

#[test]
fn visible_devices_hold_for_allocations_and_children() {
    let bench = Bench::new();
    bench.share("share", 0, 1, GIB);
    bench.share("other", 1, 0, GIB);
    let mut command = bench.client(&["init", "alloc:512MiB", "exec:init,alloc:1GiB,wait"]);
    let mut client = Serving::new({
        command.env("CUDA_VISIBLE_DEVICES", "1");
        command
    });
    let told = [client.line(), client.line(), client.line(), client.line()];
    assert_eq!(told, ["init 0", "alloc 0", "init 0", "alloc 0"]);
    assert_eq!([bench.usage("share").charged, bench.usage("other").charged], [GIB, 0]);
    client.kill();
}

#[test]
fn the_limit_holds_in_every_order_of_loading() {
    let bench = Bench::with_share(20 * GIB);
    let path = format!("open:{}", bench.lib().join("libcuda.so.1").display());
    let seen = format!("info 0 {0} {0}", 20 * GIB);
    let nvml = format!("memory 0 1 {} {} 0", bench.gpu(0), 20 * GIB);
    for order in [
        ["open:cuda", "init", "info", "memory"],
        ["open:nvml", "init", "info", "memory"],
        [&path, "init", "info", "memory"],
    ] {
        let shown = bench.run(&order);
        assert_eq!(shown[2..], [seen.clone(), nvml.clone()], "{order:?}");
    }
    let shown = bench.run(&["memory", "open:cuda", "init", "info"]);
    assert_eq!([&shown[0], &shown[3]], [&nvml, &seen]);
    // Opened first by an absolute path and then by name: both are the same file with the same account.
    let by_path = format!("open:{}", bench.lib().join("libnvidia-ml.so.1").display());
    let shown = bench.run(&[&by_path, "init", "info", "open:cuda", "init", "info", "memory"]);
    assert_eq!([&shown[2], &shown[5], &shown[6]], [&seen, &seen, &nvml]);
}

#[test]
fn look_ups_answer_with_the_hook_of_the_same_variant() {
    let bench = Bench::with_share(GIB);
    let hooks = [
        "address:cuMemAlloc/cuMemAlloc_v2 address:cuMemGetInfo/cuMemGetInfo_v2",
        "address:cuMemAllocAsync address:cuMemAllocAsync/cuMemAllocAsync_ptsz",
        "address:cuGetProcAddress/cuGetProcAddress_v2 address:cuInit address:cuLaunchKernel",
        "address:cuLaunchKernel/cuLaunchKernel_ptsz",
    ];
    for line in bench.run(&hooks) {
        assert_eq!(line, "address 0 true");
    }
    let shown = bench.run(&["address:", "address:cuNoSuchFunction", "address:cuStreamCreate"]);
    assert_eq!(shown[..2], ["address 0 false", "address 0 false"]);
    assert_eq!(
        shown[2], "address 0 false",
        "what is not hooked is the driver's own, at no cost"
    );
    let unlimited = |limits: &mut Limits| limits.compute_policy = ComputePolicy::Unlimited;
    bench.share_with(GIB, unlimited);
    let unlimited = bench.run(&["address:cuLaunchKernel", "address:cuInit"]);
    assert_eq!(unlimited, ["address 0 false", "address 0 true"]);
}

#[test]
fn every_public_name_is_exported() {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    let library =
        std::ffi::CString::new(dist().join("libvgpu.so").into_os_string().into_encoded_bytes()).expect("a path");
    #[allow(unsafe_code)]
    // SAFETY: a C string; the library has no constructors.
    let library = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    for list in ["cuda.txt", "cuda-data.txt", "nvml.txt"] {
        let names = fs::read_to_string(own.join("shim/names").join(list)).expect("a list");
        for name in names.lines() {
            let symbol = std::ffi::CString::new(name).expect("a name");
            #[allow(unsafe_code)]
            // SAFETY: a handle and a C string.
            let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            assert!(!address.is_null(), "{name} is not exported");
            count += 1;
        }
    }
    assert!(count > 1000, "{count} names are too few");
}

#[test]
fn a_process_without_a_share_is_refused_with_one_line() {
    let bench = Bench::with_share(GIB);
    let mut command = bench.client(&["cuinit", "memory", "alloc:1"]);
    let output = command.env_remove("VGPU_RUN_DIR").output().expect("a client");
    assert_eq!(support::lines(&output), ["cuinit 800", "memory 4", "alloc 800"]);
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(said.contains("vgpu run") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_bad_limits_file_refuses_and_is_named() {
    let bench = Bench::with_share(GIB);
    let path = bench.directory("share").join(LIMITS);
    let good = fs::read_to_string(&path).expect("limits");
    fs::write(&path, good.replace("memory 1", "memory 9")).expect("limits");
    let said = bench.refusal();
    assert!(said.contains("share/limits: checksum"), "{said}");
    fs::write(&path, "").expect("limits");
    assert!(bench.refusal().contains("share/limits"));
    fs::remove_file(&path).expect("limits");
    let said = bench.refusal();
    assert!(said.contains("share/limits: No such file"), "{said}");
}

#[test]
fn a_bad_ledger_refuses_and_is_named() {
    let bench = Bench::with_share(GIB);
    let path = bench.directory("share").join(LEDGER);
    let good = fs::read(&path).expect("a ledger");
    let garbage: Vec<u8> = good.iter().map(|byte| !byte).collect();
    let mut other = good.clone();
    other[ledger::VERSION_AT] += 1;
    let newer = format!("version {}", ledger::VERSION + 1);
    for (bytes, word) in [
        (&good[..4096], "4096 bytes"),
        (&good[..0], "0 bytes"),
        (&garbage[..], "not a ledger"),
        (&other[..], &newer),
        (&ledger::image(&bench.limits("other", 0, 0, GIB))[..], "another share"),
    ] {
        fs::write(&path, bytes).expect("a ledger");
        let said = bench.refusal();
        assert!(said.contains("share/ledger") && said.contains(word), "{word}: {said}");
    }
    fs::remove_file(&path).expect("a ledger");
    assert!(bench.refusal().contains("share/ledger"));
    fs::write(&path, good).expect("a ledger");
    assert_eq!(bench.free(), GIB);
}

#[test]
fn a_ledger_damaged_while_running_stops_allocations_and_lets_frees_pass() {
    let bench = Bench::with_share(GIB);
    let mut client = Serving::heard(bench.client(&["init alloc:512MiB serve"]));
    client.did(&["init alloc:512MiB"]);
    let max = u64::MAX.to_le_bytes();
    let written = bench.open_ledger("share").write_all_at(&max, ledger::CHARGED_AT as u64);
    written.expect("damage");
    let answers = ["alloc:2MiB", "alloc:2MiB", "free:0"].map(|step| client.ask(step));
    assert_eq!(answers, ["2", "2", "0"]);
    let said = client.said();
    assert!(said.contains("damaged") && said.lines().count() == 1, "{said}");
}

#[test]
fn an_absent_driver_library_is_named() {
    let bench = Bench::with_share(GIB);
    let mut limits = bench.limits("share", 0, 0, GIB);
    limits.libcuda = "/nowhere/libcuda.so.1".into();
    bench.put(&limits);
    let said = bench.refusal();
    assert!(said.contains("/nowhere/libcuda.so.1"), "{said}");
    limits.libcuda = bench.lib().join("libcuda.so.1");
    bench.put(&limits);
    let said = bench.refusal();
    assert!(
        said.contains("the limits file names this library as the driver"),
        "{said}"
    );
}

#[test]
fn lists_of_processes_are_the_shares_own() {
    let bench = Bench::with_share(20 * GIB);
    // A neighbour on the same GPU, and a process of the share that only reads.
    let mut neighbour = Serving::new(bench.bare(&["init", "alloc:2GiB", "wait"]));
    assert_eq!([neighbour.line(), neighbour.line()], ["init 0", "alloc 0"]);
    let mut looking = Serving::new(bench.client(&["memory", "wait"]));
    assert!(looking.line().starts_with("memory 0 1"));
    let idle = bench.serving(&["init"]);
    let mut holding = bench.serving(&["init", "alloc:5GiB"]);
    let mut own = [(idle.pid(), 0), (holding.pid(), 5 * GIB)];
    own.sort_unstable();
    let own = own.map(|(pid, bytes)| format!("{pid} {bytes}")).join(" ");
    assert_eq!(holding.ask("running"), format!("0 {own} smi 0 {own}"));
    [neighbour, looking, idle, holding].into_iter().for_each(Serving::kill);
}
