//! Downloads packages of given versions from PyPI into the cache, once.

use crate::{Error, folder, run};
use std::path::PathBuf;
use std::process::Command;

/// A folder for PYTHONPATH with the result of `pip install ARGUMENTS`. `key` is everything that decides it besides
/// this machine's Python.
///
/// # Errors
/// The packages cannot be fetched, or have other contents than expected.
pub fn packages(name: &str, key: &str, arguments: &[&str]) -> Result<PathBuf, Error> {
    let version = run(Command::new("python3").args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]));
    let version = version.map_err(Error::Unavailable)?;
    folder(name, &format!("{} {key}", version.trim()), |folder| {
        let mut pip = Command::new("python3");
        let options =
            "-m pip install --quiet --disable-pip-version-check --no-compile --retries 2 --timeout 30 --target";
        pip.args(options.split_whitespace()).arg(folder).args(arguments);
        match run(&mut pip) {
            Ok(_) => Ok(()),
            Err(said) => match unavailable(&said) {
                Some(why) => Err(Error::Unavailable(format!("{name} cannot be fetched: {why}"))),
                None => Err(Error::Failed(said)),
            },
        }
    })
}

/// Recognises pip's messages for a missing network, as opposed to a wrong answer.
fn unavailable(said: &str) -> Option<&str> {
    const SIGNS: [&str; 7] = [
        "connection broken by",
        "ConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "Max retries exceeded",
        "No module named pip",
        "is not a supported wheel",
    ];
    let sign = |line: &&str| SIGNS.iter().any(|sign| line.contains(sign));
    // This version of the package has no build for this Python. A package that does not exist at all is a failure.
    let for_others = said.contains("Requires-Python") || said.contains("requires a different Python");
    let no_match = |line: &&str| for_others && line.contains("No matching distribution");
    said.lines().find(|line| sign(line) || no_match(line)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::unavailable;

    #[test]
    fn no_answer_is_told_from_a_wrong_one() {
        for said in [
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)': /simple/x\nERROR: no x",
            "python3: No module named pip",
            "ERROR: Ignored the following versions that require a different python version: 2.0 Requires-Python >=3.12\n\
             ERROR: No matching distribution found for x==2.0",
        ] {
            assert!(unavailable(said).is_some(), "{said}");
        }
        for said in [
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "ERROR: No matching distribution found for gpustat==1.1.1",
        ] {
            assert!(unavailable(said).is_none(), "{said}");
        }
    }
}
