//! Host ports.

use super::refusal::Refusal;
use crate::cluster::{Cluster, Load};
use crate::model::{HostPort, Pod};

pub(super) fn check(pod: &Pod, key: &str, load: Option<&Load>, cluster: &Cluster) -> Result<(), Refusal> {
    if pod.ports.is_empty() {
        return Ok(());
    }
    let neighbours = load.into_iter().flat_map(|load| &load.pods);
    let neighbours = neighbours.filter(|other| other.as_str() != key);
    let mut taken = neighbours
        .filter_map(|other| cluster.pod(other))
        .flat_map(|other| &other.ports);
    let clash = taken.find_map(|taken| pod.ports.iter().find(|wanted| clashes(wanted, taken)));
    match clash {
        Some(port) => Err(Refusal::Port(port.host_port)),
        None => Ok(()),
    }
}

/// A host port without an address is on every address.
fn clashes(one: &HostPort, other: &HostPort) -> bool {
    let open = |ip: &str| matches!(ip, "" | "0.0.0.0" | "::");
    let protocol = |port: &HostPort| match port.protocol.as_str() {
        "" => "TCP".to_owned(),
        protocol => protocol.to_owned(),
    };
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (open(&one.host_ip) || open(&other.host_ip) || one.host_ip == other.host_ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::tests::{cluster, pod, refusals};

    fn listens(name: &str, port: &str) -> Pod {
        pod(name, "", &format!(r#""containers":[{{"ports":[{{{port}}}]}}]"#))
    }

    #[test]
    fn a_port_is_had_once_an_address() {
        let cluster = cluster(&[
            (listens("x", r#""hostPort":80"#), "a1"),
            (listens("y", r#""hostPort":80,"hostIP":"10.0.0.1""#), "a2"),
            (listens("z", r#""hostPort":80,"protocol":"UDP""#), "b1"),
        ]);
        let no = || Some(Refusal::Port(80));
        assert_eq!(
            refusals(&cluster, &listens("p", r#""hostPort":80"#)),
            [no(), no(), None]
        );
        assert_eq!(
            refusals(&cluster, &listens("p", r#""hostPort":80,"hostIP":"10.0.0.2""#)),
            [no(), None, None]
        );
        assert_eq!(
            refusals(&cluster, &listens("x", r#""hostPort":80"#))[0],
            None,
            "its own port"
        );
    }
}
