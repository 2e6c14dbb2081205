//! The access from the host: a socket that the keeper bound to 127.0.0.1 in the host's network namespace, on which a
//! process inside the cluster's namespace accepts connections. The API server itself asks every caller for a
//! certificate or a token.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::{io, thread, time::Duration};

use super::config::API_ADDRESS;

/// Accepts connections forever.
pub(super) fn serve(listener: &TcpListener) {
    loop {
        match listener.accept() {
            Ok((caller, _)) => {
                thread::spawn(move || drop(join(caller)));
            }
            Err(_) => thread::sleep(Duration::from_millis(100)), // probably out of file descriptors
        }
    }
}

/// Copies in both directions until both have ended.
fn join(caller: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect((API_ADDRESS, 443))?;
    caller.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_caller, to_server) = (caller.try_clone()?, server.try_clone()?);
    let there = thread::spawn(move || copy(from_caller, to_server));
    copy(server, caller);
    let _ = there.join();
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
