//! The interface of the software GPU: two variables, their error messages, the exported names, the effects of a
//! profile.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{Client, Folder, answer, client, libraries, on_gpus, program, succeeds};
use soft_gpu::names;

/// The answer of cuInit, and what was written to stderr.
fn once(mut command: Command) -> (String, String) {
    use std::io::Write;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"cuinit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    let line = text(output.stdout);
    (answer(&line, "cuinit").to_owned(), text(output.stderr))
}

fn with_profile(state: &Folder, profile: &Path) -> Command {
    let mut command = client(&state.0);
    command.env("SOFT_GPU_PROFILE", profile);
    command
}

fn profile(state: &Folder, text: &str) -> std::path::PathBuf {
    std::fs::create_dir_all(&state.0).unwrap();
    let path = state.0.join("test.profile");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn mistakes_get_one_line_that_names_the_variable_and_its_value() {
    let state = Folder::new("mistakes");
    let bad = profile(&state, "gpus = 2\nmemory = much\n");
    let file = state.0.join("a-file");
    std::fs::write(&file, "").unwrap();
    let on_file = client(&file);
    let below_file = client(&file.join("below"));
    let missing = state.0.join("missing");
    let bad_text = format!(
        "soft-gpu: SOFT_GPU_PROFILE={}: line 2: memory = much: expected a size",
        bad.display()
    );
    for (command, expected) in [
        (with_profile(&state, &bad), bad_text),
        (
            with_profile(&state, &missing),
            format!("soft-gpu: SOFT_GPU_PROFILE={}: No such file", missing.display()),
        ),
        (
            on_file,
            format!("soft-gpu: SOFT_GPU_STATE={}: not a directory", file.display()),
        ),
        (
            below_file,
            format!("soft-gpu: SOFT_GPU_STATE={}/below: Not a directory", file.display()),
        ),
    ] {
        let (code, stderr) = once(command);
        assert_eq!(code, "802", "CUDA_ERROR_SYSTEM_NOT_READY: {stderr}");
        assert!(stderr.starts_with(&expected), "{stderr}\nexpected {expected}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn a_damaged_state_is_refused_and_named() {
    // Zeros: without the magic.
    for (name, size) in [("short", 3), ("magic", size_of::<soft_gpu::layout::Shared>() as u64)] {
        let state = Folder::new(name);
        std::fs::create_dir_all(&state.0).unwrap();
        let file = std::fs::File::create(state.0.join("gpus")).unwrap();
        file.set_len(size).unwrap();
        let (code, stderr) = once(client(&state.0));
        assert_eq!(code, "802");
        let expected = format!(
            "soft-gpu: SOFT_GPU_STATE={}: its file gpus is damaged",
            state.0.display()
        );
        assert!(stderr.starts_with(&expected), "{stderr}");
    }
}

#[test]
fn a_profile_holds_for_all_users_and_changes_only_when_nobody_uses_it() {
    let state = Folder::new("profile");
    let small = profile(&state, "memory = 1GiB\ncontext_cost = 100MiB\n");
    let mut first = Client::spawn(with_profile(&state, &small)).with_context();
    let mut second = Client::ready(&state.0); // without the variable: the folder's profile
    assert_eq!(second.say("info"), format!("0 {} {}", (1024 - 200) << 20, 1u64 << 30));
    assert_eq!(
        first.look(0).users[&second.pid()],
        100 << 20,
        "a context's cost is its process's"
    );
    let other = state.0.join("other.profile");
    std::fs::write(&other, "memory = 2GiB\n").unwrap();
    let (code, stderr) = once(with_profile(&state, &other));
    assert_eq!(code, "802");
    assert!(stderr.contains("is in use with another profile"), "{stderr}");
    first.kill();
    second.kill();
    let mut third = Client::spawn(with_profile(&state, &other)).with_context();
    assert_eq!(third.say("info"), format!("0 {0} {0}", 2u64 << 30));
}

#[test]
fn faults_are_injected() {
    let state = Folder::new("faults");
    let path = profile(&state, "fail.cuMemAlloc = 2 after 2\nfail.cuMemGetInfo = 999 every 2\n");
    let mut client = Client::spawn(with_profile(&state, &path)).with_context();
    let codes: Vec<String> = (0..4).map(|_| client.say("alloc:4096")).collect();
    assert_eq!(codes, ["0", "0", "2", "2"]);
    assert!(client.say("info").starts_with("0 "));
    assert!(client.say("info").starts_with("999 "));
    let (code, _) = once(with_profile(&Folder::new("faults2"), &path));
    assert_eq!(code, "0", "faults of other functions leave cuInit alone");
}

#[test]
fn visible_devices_choose_and_order() {
    let state = Folder::new("visible");
    for (value, code) in [
        ("1", "0"),
        ("0,1", "0"),
        ("", "100"),
        ("7", "100"),
        ("GPU-nonsense", "100"),
    ] {
        let mut command = client(&state.0);
        command.env("CUDA_VISIBLE_DEVICES", value);
        assert_eq!(once(command).0, code, "CUDA_VISIBLE_DEVICES={value}");
    }
    let mut command = client(&state.0);
    command.env("CUDA_VISIBLE_DEVICES", "1");
    let mut client = Client::spawn(command).with_context();
    assert_eq!(client.say("alloc:2097152"), "0");
    assert_eq!(
        (client.look(0).used, client.look(1).used),
        (0, 2 << 20),
        "ordinal 0 is GPU 1"
    );
}

/// The dynamic symbols that a library defines, as nm lists them.
fn exports(library: &Path) -> Vec<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("nm (binutils)");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.split(' ').nth(2)?.to_owned()))
        .collect();
    names.sort();
    names
}

#[test]
fn exactly_the_public_names_are_exported() {
    // One name more, for programs of tests.
    let own = ["softGpuSleepUntil"];
    for (library, list, own) in [
        ("libcuda.so.1", names::CUDA, &own[..]),
        ("libnvidia-ml.so.1", names::NVML, &[]),
    ] {
        let expected: Vec<&str> = list.lines().chain(own.iter().copied()).collect();
        assert_eq!(exports(&libraries().join(library)), expected, "{library}");
    }
}

#[test]
fn calls_of_what_is_not_modelled_are_counted() {
    let state = Folder::new("calls");
    let mut client = Client::ready(&state.0);
    assert_eq!(client.say("call:cuGraphDebugDotPrint"), "801");
    assert_eq!(client.say("call:cuGraphDebugDotPrint"), "801");
    let config = soft_gpu::env::Config {
        dir: state.0.clone(),
        origin: "the test",
        profile: None,
        cgroup: None,
        caps: None,
    };
    let calls = soft_gpu::state::State::open(&config).unwrap().calls(false);
    let index = names::CUDA
        .lines()
        .position(|name| name == "cuGraphDebugDotPrint")
        .unwrap();
    assert_eq!((calls[index], calls.iter().sum::<u32>()), (2, 2));
}

/// In a folder for everybody (1777), files are for everybody too, whatever the first user's umask is.
#[test]
fn a_shared_folder_serves_several_users() {
    use std::os::unix::fs::PermissionsExt;
    let state = Folder::new("users");
    std::fs::create_dir(&state.0).unwrap();
    std::fs::set_permissions(&state.0, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let mut command = on_gpus("sh", &state.0);
    command.args(["-c", &format!("umask 077; exec {} serve", program().display())]);
    let mut first = Client::spawn(command);
    assert_eq!(first.say("cuinit"), "0");
    for file in ["gpus", "lock", "procs/0000"] {
        let mode = std::fs::metadata(state.0.join(file)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o666, "{file}");
    }
    if !succeeds("setpriv", &["--reuid=65534", "--regid=65534", "--clear-groups", "true"]) {
        vgpu_skip::skip(
            "a_shared_folder_serves_several_users",
            "needs root that may become another user",
        );
        return;
    }
    let copy = state.0.join("client");
    std::fs::copy(program(), &copy).unwrap();
    let library = state.0.join("lib");
    std::fs::create_dir(&library).unwrap();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::fs::copy(libraries().join(name), library.join(name)).unwrap();
    }
    let mut command = on_gpus("setpriv", &state.0);
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .arg("serve");
    command.env("LD_LIBRARY_PATH", &library);
    let mut second = Client::spawn(command).with_context();
    assert_eq!(second.say("alloc:4096"), "0");
    assert_eq!(first.look(0).used, 2 << 20, "root sees the other user's memory");
}
