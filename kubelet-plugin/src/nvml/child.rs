//! The child's side: answers questions from its standard input, which is a socket, until that ends.

use super::{GpuDriver as _, Local, Question};
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc;

/// Runs as the child. `arguments` follow [`super::ARGUMENT`]: the driver root, and the configured sizes of memory as JSON.
#[must_use]
pub fn helper(arguments: &[OsString]) -> ExitCode {
    let parsed = match arguments {
        [driver_root, sizes] => sizes
            .to_str()
            .and_then(|sizes| Some((driver_root, serde_json::from_str(sizes).ok()?))),
        _ => None,
    };
    let Some((driver_root, sizes)) = parsed else {
        eprintln!(
            "vgpu-kubelet-plugin {}: the arguments are the driver root, and sizes of memory as JSON",
            super::ARGUMENT
        );
        return ExitCode::FAILURE;
    };
    match serve(&Local::new(driver_root.into(), sizes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-kubelet-plugin {}: {error}", super::ARGUMENT);
            ExitCode::FAILURE
        }
    }
}

fn serve(local: &Local) -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let lines = BufReader::new(socket.try_clone()?).lines();
    let (sender, questions) = mpsc::sync_channel::<String>(1);
    std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        // The plugin has ended. An ordinary exit would wait for NVML, which may hang in the other thread.
        let _ = kill_process(getpid(), Signal::KILL);
    })?;
    for line in questions {
        let mut answer = match serde_json::from_str(&line)? {
            Question::Sample { with_list } => serde_json::to_vec(&local.sample(with_list))?,
            Question::Mig { gpu, call } => serde_json::to_vec(&local.mig(&gpu, &call))?,
        };
        answer.push(b'\n');
        socket.write_all(&answer)?;
    }
    Ok(())
}
