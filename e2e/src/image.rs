//! Container images without a daemon and without a registry.
//!
//! ```text
//! the distribution's packages ─ apt-get, dpkg -x ─► base layer  (cached by the packages' names)
//! dist/, pause.c, pynvml       ───────────────────► top layer   (built each time)
//!                                                      └─► OCI layout in a tar ─ ctr images import ─► the cluster
//! ```

mod apt;
mod catalogue;
mod oci;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use catalogue::{Built, Release, Released, SOFT_GPU, client_program, is_of_the_driver};
pub use oci::Contents;

use crate::layout;
use crate::lock::Lock;

/// The image of pod sandboxes, which the cluster itself needs.
pub fn pause() -> Result<PathBuf> {
    let output = made(layout::output())?;
    let _lock = Lock::wait(&output.join(".lock"))?;
    catalogue::pause(&output)
}

/// All images of this project, from the artefacts in `dist`.
pub fn all(dist: &Path, say: &mut dyn FnMut(&str)) -> Result<Built> {
    let (cache, output) = (made(layout::cache()?.join("images"))?, made(layout::output())?);
    let _cache_lock = Lock::wait(&cache.join(".lock"))?;
    let _output_lock = Lock::wait(&output.join(".lock"))?;
    catalogue::all(&cache, &output, dist, say)
}

/// The images that users get, in the folder `output`, from the artefacts of each architecture, with labels and annotations of this release.
pub fn release(
    dists: &[(&'static str, PathBuf)],
    output: &Path,
    release: &Release,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Released>> {
    let cache = made(layout::cache()?.join("images"))?;
    made(output.to_path_buf())?;
    let _cache_lock = Lock::wait(&cache.join(".lock"))?;
    catalogue::release(&cache, output, dists, release, say)
}

/// Writes an image with the layer `top` on another archive's image, like a Dockerfile with FROM and COPY. `work` is a
/// folder for its parts and its archive.
pub fn on_top(below: &Path, name: &str, top: Contents, work: &Path) -> Result<PathBuf> {
    let to = work.join("image.tar");
    oci::on_top(below, name, top, &made(work.join("parts"))?, &to)?;
    Ok(to)
}

fn made(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}
