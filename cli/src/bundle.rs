//! Implements `vgpu bundle`: collects in one archive what a helper needs to see of a cluster.
//!
//! ```text
//!  Cluster ─► doctor's Answer, other lists, logs ─► shown: the fields that matter ─► names: pseudonyms ─┬─► objects, logs
//!                                                                             bars ─► page.html ◄───────┘     ─► tar
//! ```
//!
//! How it fails: read.txt names what the user may not read, and what was cut off, because each kind has a limit. The
//! archive is written in one step, and never over another file. Text that users can write is replaced, escaped or left
//! out; fields that are not listed in [`shown`] are left out.
#![forbid(unsafe_code)]

mod archive;
mod bars;
mod collect;
mod names;
mod page;
mod shown;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

use crate::cluster::{Cluster, ConnectError, ReadError};
use crate::exit;
use crate::flags::BundleFlags;
use archive::Archive;
use collect::Collected;
use page::Page;

#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("-o {}: {error}", file.display())]
    File { file: PathBuf, error: std::io::Error },
}

pub(crate) fn main(flags: &BundleFlags) -> ExitCode {
    match run(flags) {
        Ok(file) => {
            let keeps = if flags.names {
                ""
            } else {
                "; tenants' names are replaced"
            };
            // The archive exists, even if nobody reads this line.
            let _ = writeln!(
                std::io::stdout(),
                "{}{keeps}; page.html in it has a bar for each GPU",
                file.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vgpu bundle: {error}");
            ExitCode::from(exit::USAGE)
        }
    }
}

fn run(flags: &BundleFlags) -> Result<PathBuf, BundleError> {
    let cluster = Cluster::connect(&flags.cluster, None)?;
    let mut collected = Collected::read(&cluster, flags.names)?;
    let now = jiff::Timestamp::now();
    let file = flags
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("vgpu-bundle-{}.tar", now.strftime("%Y%m%dT%H%M%SZ"))));
    // A name may be learned late from one text although earlier ones contain it: the first archive is made only to
    // learn all names.
    let archive = archived(&mut collected, now).and_then(|_| archived(&mut collected, now));
    let write = archive.and_then(|archive| archive.write(&file));
    write.map_err(|error| BundleError::File {
        file: file.clone(),
        error,
    })?;
    Ok(file)
}

/// Returns the archive; it contains no name that is known once all of it is made.
fn archived(collected: &mut Collected, now: jiff::Timestamp) -> std::io::Result<Archive> {
    let names = &mut collected.names;
    let mut archive = Archive::new(now.as_second());
    let mut kinds = collected.kinds.clone();
    for (plural, objects) in &mut kinds {
        for object in objects.iter_mut() {
            *object = names.in_object(plural, &shown::of(plural, object));
        }
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        archive.add(&format!("objects/{plural}.json"), &format!("{list:#}\n"))?;
    }
    let page = Page {
        title: format!("dra-driver-vgpu on {}", now.strftime("%Y-%m-%d %H:%M:%S UTC")),
        doctor: names.in_text(&collected.doctor),
        nodes: bars::of(&kinds),
        notes: collected.notes.iter().map(|line| names.in_text(line)).collect(),
    };
    archive.add("page.html", &page.html())?;
    archive.add("doctor.txt", &page.doctor)?;
    archive.add("read.txt", &(page.notes.join("\n") + "\n"))?;
    for (name, text) in &collected.texts {
        archive.add(name, &names.in_text(text))?;
    }
    Ok(archive)
}
