//! COMMAND behaves under `vgpu run` as without it: output, exit status, signals, descriptors, environment.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use support::{Running, as_user, eventually, output, printed, refused, stderr, stdout};

#[test]
fn command_gets_the_callers_sigpipe() {
    as_user(|scene| {
        let vgpu = scene.sh(&[], "grep SigIgn /proc/self/status");
        for (flag, ignored) in [("--ignore-signal=PIPE", true), ("--default-signal=PIPE", false)] {
            let mut caller = scene.around(&vgpu, "env");
            caller.arg(flag);
            caller.arg(vgpu.get_program()).args(vgpu.get_args());
            let line = printed(&mut caller);
            let mask = u64::from_str_radix(line.trim().rsplit('\t').next().unwrap_or_default(), 16).unwrap();
            assert_eq!(mask >> (libc::SIGPIPE - 1) & 1 == 1, ignored, "{line}");
        }
    });
}

#[test]
fn exit_status_is_commands() {
    as_user(|scene| {
        for (script, code) in [
            ("true", 0),
            ("exit 7", 7),
            ("kill -TERM $$", 143),
            ("kill -KILL $$", 137),
            ("kill -USR1 $$", 138),
        ] {
            let output = output(&mut scene.sh(&[], script));
            assert_eq!(output.status.code(), Some(code), "{script}");
            assert_eq!(stderr(&output), "", "{script}");
        }
    });
}

#[test]
fn a_context_that_cannot_be_measured_is_said_in_one_line_and_the_command_runs() {
    as_user(|scene| {
        let mut command = scene.sh(&[], "echo ran");
        let output = output(command.env("SOFT_GPU_STATE", scene.path("unmeasured")));
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "ran\n"));
        let line = stderr(&output);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(
            line.starts_with("vgpu run: what a CUDA context takes on GPU-0000"),
            "{line}"
        );
        for words in ["cuDevicePrimaryCtxRetain", "answers 2;", "600 MiB are reserved"] {
            assert!(line.contains(words), "{line}");
        }
    });
}

#[test]
fn a_command_that_does_not_start_is_named() {
    as_user(|scene| {
        let file = scene.path("text");
        fs::write(&file, "text").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let run = |program: &str| scene.vgpu(["run", "--soft-gpu", "--", program]);
        assert_eq!(
            refused(&mut run("no-such-program"), 127),
            "vgpu run: no-such-program: not found\n"
        );
        assert!(refused(&mut run(file.to_str().unwrap()), 126).contains("cannot be executed"));
        assert!(refused(&mut run("/tmp"), 126).starts_with("vgpu run: /tmp: "));
        assert_eq!(refused(&mut run(""), 127), "vgpu run: : not found\n");
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn nothing_is_added_to_its_output_and_its_input_is_its_own() {
    as_user(|scene| {
        let mut command = scene.sh(&[], "cat; printf 'out\\0' ; printf err >&2");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in ").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (stdout(&output).as_str(), stderr(&output).as_str()),
            ("in out\0", "err")
        );
    });
}

#[test]
fn arguments_arrive_as_they_are() {
    as_user(|scene| {
        let args = [
            "run",
            "--soft-gpu",
            "--",
            "printf",
            "%s|",
            "a b",
            "",
            "--",
            "--memory",
            "*",
        ];
        assert_eq!(printed(&mut scene.vgpu(args)), "a b||--|--memory|*|");
    });
}

#[test]
fn signals_are_passed_on() {
    as_user(|scene| {
        for (name, number) in [
            ("INT", libc::SIGINT),
            ("TERM", libc::SIGTERM),
            ("HUP", libc::SIGHUP),
            ("QUIT", libc::SIGQUIT),
            ("USR1", libc::SIGUSR1),
            ("USR2", libc::SIGUSR2),
            ("WINCH", libc::SIGWINCH),
            ("ALRM", libc::SIGALRM),
        ] {
            let script = format!("trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.01; done");
            // A shell cannot trap a signal that its caller ignores, as nohup ignores SIGHUP, and would go on forever.
            let vgpu = scene.sh(&[], &script);
            let mut heeding = scene.around(&vgpu, "env");
            heeding
                .arg("--default-signal")
                .arg(vgpu.get_program())
                .args(vgpu.get_args());
            let running = Running::start(&mut heeding);
            running.signal(number);
            assert_eq!(running.end(), (Some(3), "got\n".into()), "{name}");
        }
    });
}

#[test]
fn a_signal_that_kills_command_ends_vgpu_with_128_and_its_number() {
    as_user(|scene| {
        let running = Running::start(&mut scene.sh(&[], "echo ready; exec sleep 60"));
        running.signal(libc::SIGTERM);
        assert_eq!(running.end().0, Some(143));
        assert_eq!(scene.shares(), [""; 0]);
    });
}

#[test]
fn what_the_caller_ignores_command_ignores() {
    as_user(|scene| {
        let vgpu = scene.sh(&[], "kill -HUP $$; echo alive");
        let mut nohup = scene.around(&vgpu, "sh");
        nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]);
        nohup.arg(vgpu.get_program()).args(vgpu.get_args());
        assert_eq!(printed(&mut nohup), "alive\n");
    });
}

#[test]
fn a_stop_stops_both_and_a_continue_continues_both() {
    as_user(|scene| {
        let script = "echo ready; read line; echo $line";
        // A group whose parent is not in the session, as in some CI, is orphaned: the kernel drops its SIGTSTP.
        let mut running = Running::start(scene.sh(&[], script).process_group(0));
        let child = child_of(running.0.id());
        running.signal(libc::SIGTSTP);
        eventually("COMMAND is stopped", || state(child) == 'T');
        running.signal(libc::SIGCONT);
        eventually("COMMAND goes on", || state(child) != 'T');
        std::io::Write::write_all(running.0.stdin.as_mut().unwrap(), b"on\n").unwrap();
        assert_eq!(running.end(), (Some(0), "on\n".into()));
    });
}

#[test]
fn the_terminals_signal_arrives_once() {
    as_user(|scene| {
        // script(1) may be missing; python3, a prerequisite, has a pty.
        let python = r#"
import os, pty, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
def until(text):
    seen = b''
    while text not in seen:
        seen += os.read(fd, 1000)
    return seen
until(b'ready')
os.write(fd, b'\x03')
seen = until(b'first')
time.sleep(0.3)
os.write(fd, b'x\n')
seen += until(b'end')
print(seen.count(b'got'), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
        let script = "trap 'echo got; echo first' INT; echo ready; while ! read line; do :; done; echo end; exit 5";
        let vgpu = scene.sh(&[], script);
        let mut command = scene.around(&vgpu, "python3");
        command
            .args(["-c", python])
            .arg(vgpu.get_program())
            .args(vgpu.get_args());
        assert_eq!(printed(&mut command), "1 5\n");
    });
}

#[test]
fn it_inherits_no_descriptor_but_the_shares_lock() {
    as_user(|scene| {
        let script = "for fd in /proc/$$/fd/*; do echo ${fd##*/} $(readlink $fd); done";
        let limited = scene.sh(&[], script);
        // The test itself may have inherited more than the three.
        let mut bare = scene.around(&limited, "sh");
        let bare = printed(bare.args(["-c", script]).stdin(Stdio::null()));
        let number = |line: &str| line.split(' ').next().map(str::to_owned);
        let had: Vec<_> = bare.lines().map(number).collect();
        let listed = printed(&mut scene.sh(&[], script));
        let new: Vec<_> = listed.lines().filter(|line| !had.contains(&number(line))).collect();
        assert_eq!(new.len(), 1, "{listed}");
        assert!(new[0].starts_with("100 ") && new[0].ends_with("/lock"), "{listed}");
    });
}

#[test]
fn its_environment_keeps_what_was_there() {
    as_user(|scene| {
        let mut command = scene.sh(
            &[],
            "echo $LD_LIBRARY_PATH; echo $VGPU_RUN_DIR; echo $OTHER; ls $VGPU_RUN_DIR",
        );
        command.env("LD_LIBRARY_PATH", "/opt/lib").env("OTHER", "kept");
        let text = printed(&mut command);
        let lines: Vec<_> = text.lines().collect();
        let run_dir = scene.run_dir().display().to_string();
        assert!(
            lines[0].starts_with(&run_dir) && lines[0].ends_with("/lib:/opt/lib"),
            "{text}"
        );
        assert!(
            lines[1].starts_with(&run_dir) && lines[1].ends_with("/shares"),
            "{text}"
        );
        assert_eq!(lines[2..], ["kept", "run"], "{text}");
        let preload = printed(scene.sh(&[], "echo $LD_PRELOAD").env("LD_PRELOAD", ""));
        assert!(preload.ends_with("/lib/libvgpu-preload.so\n"), "{preload}");
    });
}

#[test]
fn verbose_names_the_drivers_files_which_library_path_led_to() {
    as_user(|scene| {
        let folder = scene.path("release/soft-gpu");
        let mut command = scene.vgpu(["run", "--verbose", "--", "true"]);
        let output = output(command.env("LD_LIBRARY_PATH", &folder));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let line = said.lines().find(|line| line.starts_with("vgpu run: GPU GPU-"));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let file = folder.canonicalize().unwrap().join(name);
            assert!(line.contains(&file.display().to_string()), "{line}");
        }
    });
}

#[test]
fn a_run_inside_of_a_run_is_refused() {
    as_user(|scene| {
        let inner = format!("{} run --soft-gpu -- true", scene.path("release/vgpu").display());
        let output = output(&mut scene.sh(&[], &inner));
        assert_eq!(output.status.code(), Some(2));
        assert!(
            stderr(&output).starts_with("vgpu run: VGPU_RUN_DIR="),
            "{}",
            stderr(&output)
        );
    });
}

fn child_of(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("one child: {children:?}"))
}

fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap()
}
