//! The guest's files as one tar: the checkout, the built programs, the tools and the images, at the same paths and
//! with the guest's user as their owner.
//!
//! The guest unpacks it from its second disk. It has neither Go nor a network, so it also gets a file that says what
//! was prepared here, and a profile whose variables lead there.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

use super::ending;
use super::rootfs::USER_ID;
use crate::image::client_program;
use crate::layout;
use crate::prepared::{self, Prepared};

/// Settings of this machine's user that count in the guest too.
const PASSED_ON: [&str; 3] = ["CONTAINERD_VERSION", "KUBERNETES_VERSION", "VGPU_TIME_FACTOR"];

/// Folders of git and cargo in a checkout.
const LEFT_OUT: [&str; 2] = [".git", "target"];

/// Writes the payload.
pub(super) fn write(prepared: &Prepared, tests: Option<&Path>, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut payload = Payload(Builder::new(file));
    let (checkout, dist, output) = (layout::workspace(), layout::dist()?, layout::output());
    payload.tree(&checkout)?;
    if !dist.starts_with(&checkout) {
        payload.tree(&dist)?;
    }
    // Below target, where a tree stops.
    let programs = [prepared.program().to_path_buf(), client_program()?];
    for folder in [output.parent(), Some(output.as_path()), programs[0].parent()]
        .into_iter()
        .flatten()
    {
        payload.folder(folder)?;
    }
    for file in programs
        .iter()
        .map(PathBuf::as_path)
        .chain(tests)
        .chain(prepared.archives())
    {
        payload.file(file)?;
    }
    for folder in [Some(layout::cache()?), layout::cache()?.parent().map(Path::to_path_buf)]
        .into_iter()
        .flatten()
    {
        payload.folder(&folder)?;
    }
    for path in prepared.toolchain.paths() {
        payload.tree(path)?;
    }
    let built = output.join("built.json");
    payload.text(&built, &prepared.to_json()?)?;
    payload.text(
        Path::new("/etc/profile.d/checkout.sh"),
        &profile(&dist, &output, &built)?,
    )?;
    payload.0.finish().context("cannot write the payload")
}

/// The variables of the guest's user.
fn profile(dist: &Path, output: &Path, built: &Path) -> Result<String> {
    let cache = layout::cache()?;
    let target = output.parent().unwrap_or(output);
    let mut variables = vec![
        (
            "XDG_CACHE_HOME".to_owned(),
            cache.parent().unwrap_or(&cache).display().to_string(),
        ),
        ("CARGO_TARGET_DIR".to_owned(), target.display().to_string()),
        ("VGPU_DIST".to_owned(), dist.display().to_string()),
        (prepared::BUILT.to_owned(), built.display().to_string()),
    ];
    for name in PASSED_ON {
        variables.extend(env::var(name).ok().map(|value| (name.to_owned(), value)));
    }
    Ok(variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect())
}

/// One word of a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

struct Payload(Builder<File>);

impl Payload {
    /// A file, or a folder with its contents except [`LEFT_OUT`].
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
        self.add(path, header(EntryType::Directory, 0o755, 0), std::io::empty())
    }

    fn file(&mut self, path: &Path) -> Result<()> {
        ending::check()?;
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let known = file
            .metadata()
            .with_context(|| format!("cannot read {}", path.display()))?;
        // A file that grows meanwhile would end in the middle of the next one.
        let contents = std::io::Read::take(&file, known.len());
        self.add(
            path,
            header(EntryType::Regular, known.mode() & 0o7777, known.len()),
            contents,
        )
    }

    fn text(&mut self, path: &Path, text: &str) -> Result<()> {
        let size = u64::try_from(text.len()).context("a text without a length")?;
        self.add(path, header(EntryType::Regular, 0o644, size), text.as_bytes())
    }

    fn link(&mut self, path: &Path) -> Result<()> {
        let target = fs::read_link(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut header = header(EntryType::Symlink, 0o777, 0);
        self.0
            .append_link(&mut header, inside(path), target)
            .with_context(|| format!("cannot pack {}", path.display()))
    }

    fn add(&mut self, path: &Path, mut header: Header, contents: impl std::io::Read) -> Result<()> {
        self.0
            .append_data(&mut header, inside(path), contents)
            .with_context(|| format!("cannot pack {}", path.display()))
    }
}

/// A tar has no absolute paths.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(USER_ID);
    header.set_gid(USER_ID);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_packed_for_the_guests_user_without_what_git_and_cargo_keep() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        for name in ["src", ".git", "target"] {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("file"), name).unwrap();
        }
        fs::write(tree.join("target/CACHEDIR.TAG"), "").unwrap();
        std::os::unix::fs::symlink("src/file", tree.join("link")).unwrap();
        let to = folder.path().join("payload.tar");
        let mut payload = Payload(Builder::new(File::create(&to).unwrap()));
        payload.tree(&tree).unwrap();
        payload.0.finish().unwrap();
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
    fn a_value_stays_one_word() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
