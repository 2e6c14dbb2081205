//! Builds this repository's Go programs, which compare our code with Go originals, once into the cache.

use crate::{Error, folder, run};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Returns the program of the module in a folder, which has its name. With `VGPU_GO=cached` (`make unit`) it is only
/// taken from the cache: most of these programs contain Kubernetes, which takes minutes to build.
///
/// # Errors
/// It cannot be built, or must not be.
pub fn program(source: &Path) -> Result<PathBuf, Error> {
    let name = source.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| format!("{}: not a folder with a name", source.display()))?;
    build(source, ".", &name)
}

/// Returns a program of others, which the module in a folder pins as a tool: `package` is that of its `main`.
///
/// # Errors
/// It cannot be built, or must not be.
pub fn tool(source: &Path, package: &str) -> Result<PathBuf, Error> {
    let name = package.rsplit('/').next().unwrap_or(package);
    build(source, package, name)
}

fn build(source: &Path, package: &str, name: &str) -> Result<PathBuf, Error> {
    let version = run(go(source).args(["env", "GOVERSION"]))
        .map_err(|said| Error::Unavailable(format!("Go is missing: install Go >= 1.26 ({})", last_line(&said))))?;
    let key = match package {
        "." => format!("{version}{}", all_of(source)?),
        package => format!("{version}{package}{}", all_of(source)?),
    };
    let done = folder(name, &key, |folder| {
        if std::env::var_os("VGPU_GO").is_some_and(|value| value == "cached") {
            let why = format!("{name} is not in the cache, and VGPU_GO=cached does not build it: `make test` does");
            return Err(Error::Unavailable(why));
        }
        eprintln!("building {}: a minute or two when nothing is cached", source.display());
        // What e2e's tools are built with, so that Go's own cache has most of it.
        let built = run(go(source)
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o"])
            .arg(folder.join(name))
            .arg(package));
        match built {
            Ok(_) => Ok(()),
            Err(said) if is_unavailable(&said) => {
                let why = last_line(&said);
                Err(Error::Unavailable(format!("{name} cannot be built: {why}")))
            }
            Err(said) => Err(Error::Failed(said)),
        }
    })?;
    Ok(done.join(name))
}

/// A program that answers each line with a line. It ends with the value.
#[derive(Debug)]
pub struct Answers {
    process: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Answers {
    /// Starts the program of the module in a folder.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn of(source: &Path, arguments: &[&str]) -> Result<Self, Error> {
        let program = program(source)?;
        let failed = |what: &str| Error::Failed(format!("{}: {what}", program.display()));
        let mut process = Command::new(&program)
            .args(arguments)
            .env("GOMAXPROCS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error.to_string()))?;
        let (questions, answers) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            process,
            questions: questions.ok_or_else(|| failed("no pipe to its input"))?,
            answers: BufReader::new(answers.ok_or_else(|| failed("no pipe from its output"))?),
        })
    }

    /// The answer to a question, which has no line break in it.
    ///
    /// # Errors
    /// The program has ended.
    pub fn ask(&mut self, question: &str) -> std::io::Result<String> {
        writeln!(self.questions, "{question}")?;
        let mut answer = String::new();
        match self.answers.read_line(&mut answer)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // It ends by itself with its input; a test that failed does not wait for that.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `go` in a module, undisturbed by a workspace file of the caller.
fn go(source: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(source).env("GOWORK", "off");
    go
}

/// Everything in the folder that decides the result: go.sum stands for the modules.
fn all_of(source: &Path) -> Result<String, String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(source).map_err(|error| failed(source, error))? {
        let path = entry.map_err(|error| failed(source, error))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("go" | "mod" | "sum")) {
            files.push(path);
        }
    }
    files.sort();
    let mut all = String::new();
    for path in files {
        all.push_str(&path.file_name().unwrap_or_default().to_string_lossy());
        all.push('\0');
        all.push_str(&fs::read_to_string(&path).map_err(|error| failed(&path, error))?);
        all.push('\0');
    }
    Ok(all)
}

/// What Go says when it got no answer or is too old, rather than that the program is wrong.
fn is_unavailable(said: &str) -> bool {
    const SIGNS: [&str; 8] = [
        "requires go >=",
        "toolchain not available",
        "dial tcp",
        "no such host",
        "i/o timeout",
        "TLS handshake timeout",
        "connection refused",
        "module lookup disabled by GOPROXY=off",
    ];
    SIGNS.iter().any(|sign| said.contains(sign))
}

fn last_line(said: &str) -> &str {
    said.trim().lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{all_of, is_unavailable};

    #[test]
    fn no_answer_is_told_from_a_program_that_is_wrong() {
        for said in [
            "go: errors parsing go.mod: requires go >= 1.26.0 (running go 1.25.1; GOTOOLCHAIN=local)",
            "main.go:9:2: k8s.io/api@v0.37.1: Get \"https://proxy/k8s.io\": dial tcp: lookup proxy: no such host",
        ] {
            assert!(is_unavailable(said), "{said}");
        }
        assert!(!is_unavailable("./main.go:9:2: undefined: x"));
        assert!(!is_unavailable("verifying k8s.io/api@v0.37.1: checksum mismatch"));
    }

    #[test]
    fn every_source_decides_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("main.go", "package main");
        write("go.sum", "");
        let first = all_of(folder.path()).unwrap();
        write("README", "x");
        assert_eq!(first, all_of(folder.path()).unwrap());
        write("go.sum", "x");
        let second = all_of(folder.path()).unwrap();
        write("another.go", "");
        assert!(first != second && second != all_of(folder.path()).unwrap());
    }
}
