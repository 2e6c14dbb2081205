//! Implements `vgpu doctor`: what keeps the driver from working on a cluster, from the cluster's objects.
//!
//! ```text
//!  Cluster ─► Seen: lists, /readyz of plugins that are not ready, rights ─► findings (pure) ─► text or JSON
//!                                                    --probe: a pod with a claim ─┘
//! ```
//!
//! How it fails: what the user may not read is not checked; the answer says so and names the missing right. It changes
//! nothing in the cluster except for the probe's pod. Exit status 0: no finding; 1: at least one finding; 2: the
//! cluster cannot be read, or too little of it for any finding.
#![forbid(unsafe_code)]

mod finding;
mod findings;
mod gpus;
mod probe;
mod release;
mod rights;
mod seen;
#[cfg(test)]
mod tests;
mod usage;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cluster::{Cluster, ConnectError, ReadError};
use crate::exit;
use crate::flags::{AnswerFormat, DoctorFlags};
use crate::output::{clean, print};
use finding::Finding;
pub(crate) use probe::probe_share;
use probe::{Outcome, ProbeError};
use seen::Seen;
pub(crate) use seen::{DRIVER, is_labelled, key, list, text};

#[derive(Debug, thiserror::Error)]
enum DoctorError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the probe: {0}")]
    Probe(#[from] ProbeError),
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
}

pub(crate) fn main(flags: &DoctorFlags) -> ExitCode {
    match run(flags) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vgpu doctor: {error}");
            ExitCode::from(exit::USAGE)
        }
    }
}

fn run(flags: &DoctorFlags) -> Result<ExitCode, DoctorError> {
    let cluster = Cluster::connect(&flags.cluster, flags.pod.namespace.as_deref())?;
    let mut answer = Answer::read(&cluster)?;
    let probed = flags.probe.then(|| probe::run(&cluster, &flags.pod, &answer.seen));
    // The findings are printed even if the probe failed.
    let failed = match probed.transpose() {
        Ok(None) => None,
        Ok(Some(Outcome::Ran(said))) => {
            answer.probed = Some(said);
            None
        }
        Ok(Some(Outcome::Stopped(finding))) => {
            answer.found.push(finding);
            None
        }
        Err(error) => Some(error),
    };
    let written = match flags.output {
        AnswerFormat::Text => answer.text(),
        AnswerFormat::Json => format!("{:#}\n", answer.document()),
        // Cannot fail: it has only texts and lists.
        AnswerFormat::Yaml => serde_saphyr::to_string(&answer.document()).unwrap_or_default(),
    };
    print(&written)?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    Ok(match (answer.found.is_empty(), answer.knows_enough()) {
        (false, _) => ExitCode::from(exit::NO),
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(exit::USAGE),
    })
}

/// The findings, and what could not be checked.
pub(crate) struct Answer {
    found: Vec<Finding>,
    pub(crate) seen: Seen,
    /// The answer of the probe's pod, if there was one.
    probed: Option<String>,
}

impl Answer {
    pub(crate) fn read(cluster: &Cluster) -> Result<Self, ReadError> {
        let mut seen = Seen::read(cluster)?;
        rights::ask(&mut seen, cluster);
        seen.unread.extend(findings::unknown_cdi(&seen));
        Ok(Self {
            found: findings::of(&seen),
            seen,
            probed: None,
        })
    }

    fn knows_enough(&self) -> bool {
        self.probed.is_some() || self.seen.knows_enough()
    }

    fn document(&self) -> Value {
        json!({"findings": self.found, "notes": gpus::notes(&self.seen), "notChecked": self.seen.unread,
            "probe": self.probed})
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail. Names, labels and pages of tenants' objects may have escape sequences.
        for finding in &self.found {
            let _ = writeln!(text, "{finding}");
        }
        for line in gpus::notes(&self.seen) {
            let _ = writeln!(text, "note: {}", clean(&line));
        }
        for line in &self.seen.unread {
            let _ = writeln!(text, "not checked: {}", clean(line));
        }
        if let Some(said) = &self.probed {
            let _ = writeln!(text, "the probe ran {}", clean(said));
        }
        let _ = match self.found.len() {
            0 if !self.knows_enough() => writeln!(text, "too little can be read to say that all is well"),
            0 => writeln!(text, "nothing was found"),
            1 => writeln!(text, "1 finding"),
            many => writeln!(text, "{many} findings"),
        };
        text
    }
}
