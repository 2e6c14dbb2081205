//! The sizes measured so far: a text file with a line `own+unowned<TAB>driver version<TAB>GPU model`, in bytes, for
//! each kind of context. A line with `?` instead of the bytes marks a kind that is being measured. The driver's memory
//! is part of the memory limit of the measuring process, which may therefore be killed. Then the mark stays, and a
//! later start finds it.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The size of a context in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSize {
    /// The part that NVML lists for the process, or everything if NVML lists no processes.
    pub own: u64,
    /// Memory that the GPU has lost with the context but that NVML lists for no process. 0 if other programs hid it.
    pub unowned: u64,
}

/// The driver version and the GPU model: all contexts of one kind take the same memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    pub driver_version: String,
    pub model: String,
}

/// The file.
#[derive(Debug)]
pub struct Sizes {
    path: PathBuf,
    known: Vec<(Kind, ContextSize)>,
    /// Kinds with a mark.
    marked: Vec<Kind>,
}

/// The mark, in place of the bytes.
const MEASURING: &str = "?";
/// The rest of a longer file is not read: nobody has that many kinds of GPUs.
const MOST: u64 = 64 << 10;

// === impl ContextSize ===

impl fmt::Display for ContextSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.own, self.unowned)
    }
}

impl FromStr for ContextSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (own, unowned) = text.split_once('+').ok_or(())?;
        let number = |text: &str| text.parse().map_err(drop);
        Ok(Self {
            own: number(own)?,
            unowned: number(unowned)?,
        })
    }
}

// === impl Sizes ===

impl Sizes {
    /// Reads the file. A missing or unreadable file is treated as empty, and malformed lines are left out.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        use io::Read;
        let mut text = String::new();
        let read = fs::File::open(path).and_then(|file| file.take(MOST).read_to_string(&mut text));
        let mut sizes = Self::none(path);
        if read.is_err() {
            return sizes;
        }
        for (kind, size) in text.lines().filter_map(parse) {
            match size {
                Some(size) => sizes.known.push((kind, size)),
                None => sizes.marked.push(kind),
            }
        }
        sizes
    }

    /// Returns a value without sizes, whatever the file contains.
    #[must_use]
    pub fn none(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            known: Vec::new(),
            marked: Vec::new(),
        }
    }

    /// The kinds with a mark: in a file just read, those whose measurement never ended.
    #[must_use]
    pub fn marked(&self) -> &[Kind] {
        &self.marked
    }

    /// Marks a kind as being measured, in the file.
    ///
    /// # Errors
    /// Errors of the file system. The file is then unchanged.
    pub fn mark(&mut self, kind: &Kind) -> io::Result<()> {
        if !self.marked.contains(kind) {
            self.marked.push(kind.clone());
        }
        let written = self.replace();
        if written.is_err() {
            self.marked.retain(|marked| marked != kind);
        }
        written
    }

    /// Removes the mark of a kind that could not be measured.
    ///
    /// # Errors
    /// Errors of the file system. The mark then stays in the file.
    pub fn unmark(&mut self, kind: &Kind) -> io::Result<()> {
        self.marked.retain(|marked| marked != kind);
        self.replace()
    }

    #[must_use]
    pub fn get(&self, kind: &Kind) -> Option<ContextSize> {
        let found = self.known.iter().find(|(known, _)| known == kind);
        found.map(|(_, size)| *size)
    }

    /// Adds a size and removes the mark of its kind. Replaces the file if `keeps` is true.
    ///
    /// # Errors
    /// Errors of the file system. This value contains the size anyway.
    pub fn put(&mut self, kind: Kind, size: ContextSize, keeps: bool) -> io::Result<()> {
        self.known.retain(|(known, _)| *known != kind);
        self.marked.retain(|marked| *marked != kind);
        self.known.push((kind, size));
        if keeps { self.replace() } else { Ok(()) }
    }

    fn replace(&self) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = self.path.with_file_name(name);
        let written = self.write(&new).and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = fs::File::create(path)?;
        let known = self.known.iter().map(|(kind, size)| (kind, size.to_string()));
        let marked = self.marked.iter().map(|kind| (kind, MEASURING.to_owned()));
        for (kind, size) in known.chain(marked) {
            let plain = |text: &str| text.replace(['\t', '\n'], " ");
            writeln!(file, "{size}\t{}\t{}", plain(&kind.driver_version), plain(&kind.model))?;
        }
        // A measurement may crash the machine, so the mark must be on disk.
        file.sync_all()
    }
}

/// Returns the kind and its size, or no size for a mark.
fn parse(line: &str) -> Option<(Kind, Option<ContextSize>)> {
    let mut fields = line.split('\t');
    let size = match fields.next()? {
        MEASURING => None,
        size => Some(size.parse().ok()?),
    };
    let kind = Kind {
        driver_version: fields.next()?.to_owned(),
        model: fields.next()?.to_owned(),
    };
    fields.next().is_none().then_some((kind, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn size(own: u64) -> ContextSize {
        ContextSize { own, unowned: 3 }
    }

    fn kind(driver_version: &str) -> Kind {
        Kind {
            driver_version: driver_version.into(),
            model: "NVIDIA H100 80GB HBM3".into(),
        }
    }

    #[test]
    fn a_size_is_known_for_its_driver_and_model_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sizes");
        let mut sizes = Sizes::read(&path);
        assert_eq!(sizes.get(&kind("550.1")), None);
        sizes.put(kind("550.1"), size(518 << 20), true).expect("written");
        sizes.put(kind("560.1"), size(1), true).expect("written");
        sizes.put(kind("560.1"), size(2), true).expect("written");
        let again = Sizes::read(&path);
        assert_eq!(
            (again.get(&kind("550.1")), again.get(&kind("560.1"))),
            (Some(size(518 << 20)), Some(size(2)))
        );
        assert_eq!(
            fs::read_dir(folder.path()).expect("a folder").count(),
            1,
            "no file is left over"
        );
    }

    #[test]
    fn a_mark_is_kept_until_the_kind_is_measured_or_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sizes");
        let mut sizes = Sizes::read(&path);
        sizes.put(kind("550.1"), size(7), true).expect("written");
        for _ in 0..2 {
            sizes.mark(&kind("560.1")).expect("written");
            sizes.mark(&kind("570.1")).expect("written");
        }
        let again = Sizes::read(&path);
        assert_eq!(again.marked(), [kind("560.1"), kind("570.1")]);
        assert_eq!(
            (again.get(&kind("550.1")), again.get(&kind("560.1"))),
            (Some(size(7)), None)
        );
        sizes.put(kind("560.1"), size(8), true).expect("written");
        assert_eq!(Sizes::read(&path).marked(), [kind("570.1")]);
        sizes.unmark(&kind("570.1")).expect("written");
        assert_eq!(Sizes::read(&path).marked(), []);
        assert_eq!(Sizes::read(&path).get(&kind("560.1")), Some(size(8)));
    }

    #[test]
    fn a_damaged_file_holds_what_can_be_read_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sizes");
        fs::write(
            &path,
            "7+3\t550.1\tNVIDIA H100 80GB HBM3\nx\ty\tz\n8\t560.1\tolder\n8+3\t560.1\n9",
        )
        .expect("written");
        let sizes = Sizes::read(&path);
        assert_eq!((sizes.get(&kind("550.1")), sizes.known.len()), (Some(size(7)), 1));
        fs::write(&path, [0xff, 0xfe]).expect("written");
        assert_eq!(Sizes::read(&path).known.len(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_and_the_size_is_known() {
        let mut sizes = Sizes::read(Path::new("/nonexistent/sizes"));
        assert!(sizes.mark(&kind("550.1")).is_err());
        assert_eq!(sizes.marked(), []);
        assert!(sizes.put(kind("550.1"), size(7), true).is_err());
        assert_eq!(sizes.get(&kind("550.1")), Some(size(7)));
    }
}
