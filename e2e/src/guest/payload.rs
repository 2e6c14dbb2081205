//! Packs all files of a cluster into one tar, for a machine without Go and network: the checkout, the built programs,
//! the tools and the images, at the same paths, with a file that lists the prepared artefacts.
//!
//! The guest unpacks it from its second disk, with its user as the owner, and gets the variables from a profile. For a
//! machine with a GPU, `gpu-check/first-contact.sh pack --cluster` splits it into parts.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tar::{Builder, EntryType, Header};

use super::ending;
use super::rootfs::USER_ID;
use crate::image::client_program;
use crate::layout;
use crate::prepared::{self, Prepared};

/// Settings of this machine's user that also apply in the guest.
const PASSED_ON: [&str; 3] = ["CONTAINERD_VERSION", "KUBERNETES_VERSION", "VGPU_TIME_FACTOR"];

/// Folders of git, cargo and gpu-check in a checkout.
const LEFT_OUT: [&str; 6] = [".git", "target", ".kit", ".kit.new", ".kit-cluster", ".kit-cluster.new"];

/// Paths of an unpacked payload, and how to use it.
#[derive(Debug, Serialize)]
pub struct Unpacked {
    /// All files are below these folders.
    folders: [PathBuf; 2],
    /// The program vgpu-e2e.
    program: PathBuf,
    environment: BTreeMap<String, String>,
}

/// Packs everything that a cluster needs, for root on another machine.
pub fn for_another_machine(prepared: &Prepared, to: &Path) -> Result<Unpacked> {
    let folders = [layout::workspace(), layout::cache()?];
    let (dist, output) = (layout::dist()?, layout::output());
    let outside = [dist.as_path(), &output, prepared.program()]
        .into_iter()
        .chain(prepared.toolchain.paths())
        .find(|path| !folders.iter().any(|folder| path.starts_with(folder)));
    if let Some(path) = outside {
        bail!(
            "{} is neither in the checkout ({}) nor in the cache ({}), and would replace a file of the other machine; \
             leave VGPU_DIST and CARGO_TARGET_DIR unset, and install libseccomp-dev if it is runc",
            path.display(),
            folders[0].display(),
            folders[1].display()
        );
    }
    let mut payload = Payload::create(to, 0)?;
    let environment = payload.all(prepared, None)?;
    payload.finish()?;
    Ok(Unpacked {
        folders,
        program: prepared.program().to_path_buf(),
        environment,
    })
}

/// Writes the guest's payload.
pub(super) fn write(prepared: &Prepared, tests: Option<&Path>, to: &Path) -> Result<()> {
    let mut payload = Payload::create(to, USER_ID)?;
    let variables = payload.all(prepared, tests)?;
    let variables = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)));
    payload.text(Path::new("/etc/profile.d/checkout.sh"), &variables.collect::<String>())?;
    payload.finish()
}

/// The variables that point to the prepared artefacts.
fn variables(dist: &Path, output: &Path, built: &Path) -> Result<BTreeMap<String, String>> {
    let cache = layout::cache()?;
    let target = output.parent().unwrap_or(output);
    let text = |path: &Path| path.display().to_string();
    let mut variables = BTreeMap::from([
        ("XDG_CACHE_HOME".to_owned(), text(cache.parent().unwrap_or(&cache))),
        ("CARGO_TARGET_DIR".to_owned(), text(target)),
        ("VGPU_DIST".to_owned(), text(dist)),
        (prepared::BUILT.to_owned(), text(built)),
    ]);
    for name in PASSED_ON {
        variables.extend(env::var(name).ok().map(|value| (name.to_owned(), value)));
    }
    Ok(variables)
}

/// Quotes one word for a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

struct Payload {
    tar: Builder<File>,
    owner: u64,
}

impl Payload {
    fn create(path: &Path, owner: u64) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self {
            tar: Builder::new(file),
            owner,
        })
    }

    /// Adds everything. Returns the variables that point to it.
    fn all(&mut self, prepared: &Prepared, tests: Option<&Path>) -> Result<BTreeMap<String, String>> {
        let (checkout, dist, output) = (layout::workspace(), layout::dist()?, layout::output());
        self.tree(&checkout)?;
        if !is_in_tree(&dist, &checkout) {
            self.tree(&dist)?;
        }
        // These are in the folder `target`, which `tree` leaves out.
        let programs = [prepared.program().to_path_buf(), client_program()?];
        for folder in [output.parent(), Some(output.as_path()), programs[0].parent()]
            .into_iter()
            .flatten()
        {
            self.folder(folder)?;
        }
        for file in programs
            .iter()
            .map(PathBuf::as_path)
            .chain(tests)
            .chain(prepared.archives())
        {
            self.file(file)?;
        }
        let cache = layout::cache()?;
        for folder in [Some(cache.as_path()), cache.parent()].into_iter().flatten() {
            self.folder(folder)?;
        }
        for path in prepared.toolchain.paths() {
            self.tree(path)?;
        }
        let built = output.join("built.json");
        self.text(&built, &prepared.to_json()?)?;
        variables(&dist, &output, &built)
    }

    fn finish(mut self) -> Result<()> {
        self.tar.finish().context("cannot write the payload")
    }

    /// Adds a file, or a folder with its contents except [`LEFT_OUT`].
    fn tree(&mut self, path: &Path) -> Result<()> {
        ending::check()?;
        let known = fs::symlink_metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if known.is_symlink() {
            return self.link(path);
        }
        if known.is_file() {
            return self.file(path);
        }
        if !known.is_dir() {
            return Ok(());
        }
        self.folder(path)?;
        let mut entries: Vec<PathBuf> = fs::read_dir(path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|entry| {
                !entry
                    .file_name()
                    .is_some_and(|name| LEFT_OUT.iter().any(|one| name == *one))
            })
            .collect();
        entries.sort();
        entries.iter().try_for_each(|entry| self.tree(entry))
    }

    fn folder(&mut self, path: &Path) -> Result<()> {
        let header = self.header(EntryType::Directory, 0o755, 0);
        self.add(path, header, std::io::empty())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        ending::check()?;
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let known = file
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?;
        // A file that grows meanwhile would overwrite the next one's header.
        let contents = std::io::Read::take(&file, known.len());
        let header = self.header(EntryType::Regular, known.mode() & 0o7777, known.len());
        self.add(path, header, contents)
    }

    fn text(&mut self, path: &Path, text: &str) -> Result<()> {
        let size = u64::try_from(text.len()).context("a text without a length")?;
        let header = self.header(EntryType::Regular, 0o644, size);
        self.add(path, header, text.as_bytes())
    }

    fn link(&mut self, path: &Path) -> Result<()> {
        let target = fs::read_link(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut header = self.header(EntryType::Symlink, 0o777, 0);
        self.tar
            .append_link(&mut header, inside(path), target)
            .with_context(|| format!("cannot pack {}", path.display()))
    }

    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_uid(self.owner);
        header.set_gid(self.owner);
        header
    }

    fn add(&mut self, path: &Path, mut header: Header, contents: impl std::io::Read) -> Result<()> {
        self.tar
            .append_data(&mut header, inside(path), contents)
            .with_context(|| format!("cannot pack {}", path.display()))
    }
}

/// Returns true if [`Payload::tree`] of `folder` includes `path`.
fn is_in_tree(path: &Path, folder: &Path) -> bool {
    let is_left_out = |part: &std::ffi::OsStr| LEFT_OUT.iter().any(|name| part == *name);
    path.strip_prefix(folder)
        .is_ok_and(|below| !below.iter().any(is_left_out))
}

/// Makes a path relative, because a tar has no absolute paths.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_packed_for_the_guests_user_without_what_git_and_cargo_keep() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        for name in ["src", ".git", "target", ".kit", ".kit-cluster"] {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("file"), name).unwrap();
        }
        fs::write(tree.join("target/CACHEDIR.TAG"), "").unwrap();
        std::os::unix::fs::symlink("src/file", tree.join("link")).unwrap();
        let to = folder.path().join("payload.tar");
        let mut payload = Payload::create(&to, USER_ID).unwrap();
        payload.tree(&tree).unwrap();
        payload.finish().unwrap();
        let mut archive = tar::Archive::new(File::open(&to).unwrap());
        let mut found: Vec<(String, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let path = Path::new("/").join(entry.path().unwrap());
                let name = path.strip_prefix(&tree).unwrap().display().to_string();
                (name, entry.header().uid().unwrap())
            })
            .collect();
        found.sort();
        assert_eq!(
            found,
            ["", "link", "src", "src/file"].map(|name| (name.to_owned(), USER_ID))
        );
    }

    #[test]
    fn programs_that_lie_in_a_folder_that_is_left_out_are_added() {
        let is_in = |dist: &str| is_in_tree(Path::new(dist), Path::new("/home/clone"));
        assert!(is_in("/home/clone/dist"));
        assert!(!is_in("/home/clone/target/test-dist") && !is_in("/elsewhere/dist"));
    }

    #[test]
    fn a_value_stays_one_word() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
