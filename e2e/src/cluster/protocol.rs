//! Messages between the processes of a cluster: one JSON document per line, over a socket pair. The socket closes when
//! either process dies, for whatever reason.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::components::Component;
use super::config::{Member, Node};

/// A request to the keeper from the program that started the cluster.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wish {
    /// Stops a member's component and starts it again.
    Restart(Member, String),
    /// Kills a member's component (SIGKILL) and starts it again.
    Kill(Member, String),
    /// Kills a member's component, and does not start it again.
    Stop(Member, String),
    /// Starts a stopped component.
    Resume(Member, String),
    /// Starts a node that is not running. Its containerd gets these images before its kubelet starts.
    StartNode(Node, Vec<PathBuf>),
    /// Kills all processes of a node at once, like a loss of power. Its disk stays.
    EndNode(Node),
    /// The cluster outlives the program that started it.
    Keep,
}

/// A message from the keeper to that program.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// Sent once the keeper holds its lock. The caller then releases the lock over all clusters.
    Note(String),
    Ready,
    Done,
    Failed(String),
}

/// An order from the keeper to an init.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Start(Component),
    Restart(String),
    Kill(String),
    Stop(String),
    Resume(String),
}

/// An event from an init to the keeper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    /// The namespaces are ready; init's PID on the host.
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

/// Returns all messages until the other side closes. An invalid line also ends the stream.
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
