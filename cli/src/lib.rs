//! `vgpu run` starts a local command under the limits that a pod would have, without Kubernetes.
//!
//! ```text
//!  argv ──► flags (raw) ──► request (validated) ─┐
//!  environment (read once) ──────────────────────┤
//!  artefacts: libvgpu.so ... beside `vgpu` ──────┼─► plan (pure) ─► Limits ─► share: <id>/shares/<share>/{limits,ledger}
//!  driver: the real libraries ─► gpus (NVML) ────┘                              │  held while COMMAND lives
//!                                                                               ▼
//!       COMMAND ◄── supervise: signals in, exit status out ◄── launch: environment, and for root namespace
//! ```
//!
//! Failure modes: a `vgpu run` that is killed at any point leaves a share that the next one removes
//! ([`share`]). Hostile folders in /tmp are refused ([`run_dir`]). A broken driver breaks only a helper
//! process ([`gpus`]). A mount that fails ends COMMAND before it starts ([`namespace`]). `vgpu allocate`,
//! `vgpu explain` and `vgpu translate` ([`mod@offline`]), `vgpu top` and `vgpu advise` (`usage`) and `vgpu log` ([`ring`]) have only flags and exit statuses in common with `vgpu run`.
//!
//! An error is one line on stderr and exit status 2. COMMAND's own output and exit status are passed through.

pub mod arbitration;
pub mod artefacts;
mod bundle;
mod cluster;
mod doctor;
pub mod driver;
pub mod environment;
pub mod exit;
pub mod flags;
pub mod gpus;
pub mod launch;
pub mod mount_users;
pub mod namespace;
mod offline;
mod output;
pub mod plan;
pub mod report;
pub mod request;
pub mod ring;
pub mod run;
pub mod run_dir;
pub mod share;
pub mod supervise;
mod table;
mod usage;

use flags::Parsed;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    if let [_, first, rest @ ..] = args.as_slice()
        && first == vgpu_context_size::ARGUMENT
    {
        return vgpu_context_size::helper(rest);
    }
    match flags::parse(args) {
        Ok(Parsed::Run(raw)) => run::main(raw),
        Ok(Parsed::Allocate(flags)) => offline::allocate::main(&flags),
        Ok(Parsed::Explain(flags)) => offline::explain::main(&flags),
        Ok(Parsed::Fit(flags)) => offline::fit::main(&flags),
        Ok(Parsed::Slices(flags)) => offline::slices::main(&flags),
        Ok(Parsed::Top(flags)) => usage::top::main(&flags),
        Ok(Parsed::Advise(flags)) => usage::advise::main(&flags),
        Ok(Parsed::Doctor(flags)) => doctor::main(&flags),
        Ok(Parsed::Bundle(flags)) => bundle::main(&flags),
        Ok(Parsed::Translate(flags)) => offline::translate::main(&flags),
        Ok(Parsed::Log { file }) => ring::main(&file),
        Ok(Parsed::ListGpus { library }) => gpus::helper(&library),
        Ok(Parsed::ProbeShare) => doctor::probe_share(),
        Ok(Parsed::Print(text)) => {
            // Fails if the reader closed the pipe, which is not an error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(line) => {
            let _ = writeln!(std::io::stderr(), "vgpu: {line}");
            ExitCode::from(exit::USAGE)
        }
    }
}
