//! The child process that measures: a program that starts itself again with [`ARGUMENT`].
#![forbid(unsafe_code)]

use crate::probe;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The first argument of the child; the libraries and the UUID follow.
pub const ARGUMENT: &str = "measure-context";
/// How long a child may take: a driver without persistence mode starts in seconds.
pub const PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN: Duration = Duration::from_millis(5);
/// Prefix of the child's line: the driver may write lines of its own.
const MARK: &str = "vgpu-context ";

/// The GPU to be measured, and its driver.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
    pub uuid: String,
}

/// Has `command`, the caller's own program, measure in a child.
///
/// # Errors
/// Why there is no figure, in one line.
pub fn ask(mut command: Command, gpu: &Gpu, patience: Duration) -> Result<u64, String> {
    command
        .arg(ARGUMENT)
        .args([gpu.libcuda.as_os_str(), gpu.libnvidia_ml.as_os_str()])
        .arg(&gpu.uuid)
        .env_remove("LD_PRELOAD")
        // The child finds the GPU by its UUID among all of them.
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("the helper cannot be started: {error}"))?;
    let until = Instant::now() + patience;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(BETWEEN),
            answer => {
                let _ = child.kill();
                let _ = child.wait();
                let late = || format!("the helper has not answered for {} s", patience.as_secs());
                return Err(answer.err().map_or_else(late, |error| error.to_string()));
            }
        }
    };
    let text = |pipe: Option<&mut dyn Read>| {
        let mut bytes = Vec::new();
        let _ = pipe.map(|pipe| pipe.take(64 << 10).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let said = text(child.stdout.as_mut().map(|pipe| pipe as &mut dyn Read));
    let figure = said.lines().find_map(|line| line.strip_prefix(MARK)?.parse().ok());
    figure.filter(|_| status.success()).ok_or_else(|| {
        let errors = text(child.stderr.as_mut().map(|pipe| pipe as &mut dyn Read));
        let silent = || format!("the helper ended with {status}");
        errors.lines().last().map_or_else(silent, str::to_owned)
    })
}

/// The child: prints the figure.
#[must_use]
pub fn helper(arguments: &[OsString]) -> ExitCode {
    let measured = match arguments {
        [libcuda, libnvidia_ml, uuid] => {
            let uuid = uuid.to_string_lossy();
            probe::measure(Path::new(libcuda), Path::new(libnvidia_ml), &uuid).map_err(|error| error.to_string())
        }
        _ => Err(format!("{ARGUMENT} LIBCUDA LIBNVIDIA_ML UUID")),
    };
    match measured {
        Ok(bytes) => {
            // The driver may have written an unfinished line.
            println!("\n{MARK}{bytes}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<u64, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let gpu = Gpu {
            libcuda: "/c".into(),
            libnvidia_ml: "/m".into(),
            uuid: "GPU-1".into(),
        };
        ask(command, &gpu, patience)
    }

    #[test]
    fn a_child_that_answers_anything_else_is_no_figure() {
        assert_eq!(shell("echo noise; echo vgpu-context 7", PATIENCE), Ok(7));
        assert_eq!(
            shell("echo 7", PATIENCE).unwrap_err(),
            "the helper ended with exit status: 0"
        );
        assert!(
            shell("echo vgpu-context 7; kill -9 $$", PATIENCE).is_err(),
            "it crashed"
        );
        assert_eq!(shell("echo why >&2; exit 1", PATIENCE).unwrap_err(), "why");
        assert!(shell("echo vgpu-context -7", PATIENCE).is_err());
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let said = shell("echo vgpu-context 7; exec sleep 1000", Duration::ZERO).unwrap_err();
        assert!(said.contains("not answered"), "{said}");
    }
}
