//! The shares of a claim, from its limits files on the node: the same files that the library in the container reads.

use std::{
    io,
    path::{Path, PathBuf},
};

use vgpu_abi::{
    limits::{Limits, MAX_SIZE, ParseError, is_share_name},
    paths::LIMITS,
};
use vgpu_node::files;

/// A share of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// UID of the claim.
    pub(crate) claim: String,
    pub(crate) name: String,
    /// UUID of the GPU.
    pub(crate) gpu: String,
    /// Bytes of the GPU's memory. What `memoryPolicy: Oversubscribe` adds on the host is not limited here.
    pub(crate) memory: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{path}: {source}; the claim's files are gone or cannot be read: delete the pod, so that its claim is prepared again",
        path = .path.display()
    )]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: not a limits file of this release: {source}; delete the pod, so that its claim is prepared again", path = .path.display())]
    Damaged { path: PathBuf, source: ParseError },
    #[error("{path}: share {found:?} in the folder of share {expected:?}; delete the pod, so that its claim is prepared again", path = .path.display())]
    Misplaced {
        path: PathBuf,
        found: String,
        expected: String,
    },
    #[error("{path}: has no share; delete the pod, so that its claim is prepared again", path = .0.display())]
    Empty(PathBuf),
    #[error("--claim {path}: its name is not a claim's UID; the CDI spec of the claim is damaged", path = .0.display())]
    Name(PathBuf),
}

/// Reads the shares of the claim in this folder.
pub(crate) fn shares(folder: &Path) -> Result<Vec<Share>, Error> {
    let claim = folder.file_name().and_then(|name| name.to_str());
    let claim = claim
        .filter(|name| is_share_name(name))
        .ok_or_else(|| Error::Name(folder.to_path_buf()))?;
    let failed = |source| Error::Io {
        path: folder.to_path_buf(),
        source,
    };
    let names = files::folders(folder).map_err(failed)?;
    let shares: Vec<Share> = names
        .iter()
        .map(|name| share(claim, name, &folder.join(name).join(LIMITS)))
        .collect::<Result<_, _>>()?;
    if shares.is_empty() {
        return Err(Error::Empty(folder.to_path_buf()));
    }
    Ok(shares)
}

fn share(claim: &str, name: &str, path: &Path) -> Result<Share, Error> {
    let bytes = files::read_bounded(path, MAX_SIZE).map_err(|source| Error::Io {
        path: path.to_path_buf(),
        source,
    })?;
    let limits = Limits::parse(&bytes).map_err(|source| Error::Damaged {
        path: path.to_path_buf(),
        source,
    })?;
    if limits.share != name {
        return Err(Error::Misplaced {
            path: path.to_path_buf(),
            found: limits.share,
            expected: name.to_owned(),
        });
    }
    Ok(Share {
        claim: claim.to_owned(),
        name: limits.share,
        gpu: limits.gpu,
        memory: limits.memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn put(claim: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(claim.join(name)).expect("a folder");
        std::fs::write(claim.join(name).join(LIMITS), text).expect("a file");
    }

    fn limits(name: &str, gpu: &str, memory: u64) -> String {
        Limits::of_memory(name, gpu, memory, "/d/libcuda.so.1", "/d/libnvidia-ml.so.1").render()
    }

    #[test]
    fn every_share_of_the_claim() {
        let root = tempfile::tempdir().expect("a folder");
        let claim = root.path().join("5c0f3b9a-0000");
        put(&claim, "a", &limits("a", "GPU-1", 10 * GIB));
        put(&claim, "b", &limits("b", "GPU-2", 5 * GIB));
        std::fs::write(claim.join("entry.json"), "not read").expect("a file");
        let share = |name: &str, gpu: &str, memory| Share {
            claim: "5c0f3b9a-0000".into(),
            name: name.into(),
            gpu: gpu.into(),
            memory,
        };
        let expected = [share("a", "GPU-1", 10 * GIB), share("b", "GPU-2", 5 * GIB)];
        assert_eq!(shares(&claim).expect("shares"), expected);
    }

    #[test]
    fn files_that_are_gone_damaged_or_of_another_release_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let said = |claim: &str| shares(&root.path().join(claim)).expect_err(claim).to_string();
        assert!(said("gone").contains("has no share"));
        assert!(said("..").contains("not a claim's UID"));
        std::fs::create_dir_all(root.path().join("no-file/a")).expect("a folder");
        assert!(said("no-file").contains("no-file/a/limits: "));
        let good = limits("a", "GPU-1", GIB);
        for (claim, text, expected) in [
            ("cut", good[..good.len() - 1].to_owned(), "checksum"),
            ("newer", good.replace("vgpu-limits 1", "vgpu-limits 2"), "version"),
            ("large", " ".repeat(MAX_SIZE + 1), "not a limits file"),
            (
                "moved",
                limits("b", "GPU-1", GIB),
                "share \"b\" in the folder of share \"a\"",
            ),
        ] {
            put(&root.path().join(claim), "a", &text);
            let error = said(claim);
            assert!(error.contains(expected) && error.contains(claim), "{claim}: {error}");
        }
    }
}
