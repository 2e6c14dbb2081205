//! Messages between the processes of a cluster: one JSON document a line, over a socket pair. Either side's end
//! closes when that side dies, however it dies.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::components::Component;
use super::config::{Member, Node};

/// From the program that wants a cluster to the keeper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wish {
    /// Ends the component of a member and starts it again.
    Restart(Member, String),
    /// Ends the component of a member at once (SIGKILL) and starts it again.
    Kill(Member, String),
    /// Ends the component of a member at once, and does not start it again.
    Stop(Member, String),
    /// Starts a component that was stopped.
    Resume(Member, String),
    /// Starts a node that does not run. Its containerd gets these images before its kubelet starts.
    StartNode(Node, Vec<PathBuf>),
    /// Ends all processes of a node at once, as a loss of power does. Its disk stays.
    EndNode(Node),
    /// Lives on without the program that asked for it.
    Keep,
}

/// From the keeper to that program.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// Sent once the keeper holds its lock. The caller then releases the lock over all clusters.
    Note(String),
    Ready,
    Done,
    Failed(String),
}

/// From the keeper to an init.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Start(Component),
    Restart(String),
    Kill(String),
    Stop(String),
    Resume(String),
}

/// From an init to the keeper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    /// The namespaces are ready; init's process id as the host sees it.
    Up(i32),
    Failed(String),
    Started {
        name: String,
        pid: i32,
    },
    Ended {
        name: String,
        status: String,
    },
}

/// Writes one message.
pub(super) fn send(stream: &UnixStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(message).context("cannot encode a message")?;
    line.push('\n');
    (&*stream).write_all(line.as_bytes()).context("the other side has gone")
}

/// All messages until the other side closes. A line that is no message ends the stream too.
pub(super) fn messages<T: DeserializeOwned>(stream: &UnixStream) -> Result<impl Iterator<Item = T> + Send + use<T>> {
    let reader = BufReader::new(stream.try_clone().context("cannot clone a socket")?);
    Ok(reader
        .lines()
        .map_while(Result::ok)
        .map_while(|line| serde_json::from_str(&line).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_end_with_the_sender() {
        let (left, right) = UnixStream::pair().unwrap();
        send(&left, &News::Note("a\nb".to_owned())).unwrap();
        send(&left, &News::Ready).unwrap();
        drop(left);
        let heard: Vec<News> = messages(&right).unwrap().collect();
        assert_eq!(heard, [News::Note("a\nb".to_owned()), News::Ready]);
    }
}
