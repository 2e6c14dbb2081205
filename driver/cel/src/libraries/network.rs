//! ip() and cidr().

use std::net::IpAddr;

use crate::evaluate::Evaluation;
use crate::node::{Call, Function};
use crate::value::{Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "ip" => ip,
        "isIP" => |_, _, args| text(args, |text| Ok(Value::Bool(parse_ip(text).is_ok()))),
        "ip.isCanonical" => |_, _, args| {
            text(args, |text| match parse_ip(text) {
                Ok(ip) => Ok(Value::Bool(ip.to_string() == text)),
                Err(why) => error(why),
            })
        },
        "family" => |_, _, args| of_ip(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |_, _, args| of_ip(args, |ip| Value::Bool(ip.is_unspecified())),
        "isLoopback" => |_, _, args| of_ip(args, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |_, _, args| of_ip(args, |ip| Value::Bool(is_link_local_multicast(ip))),
        "isLinkLocalUnicast" => |_, _, args| of_ip(args, |ip| Value::Bool(is_link_local(ip))),
        "isGlobalUnicast" => |_, _, args| of_ip(args, |ip| Value::Bool(is_global_unicast(ip))),
        "cidr" => |_, _, args| {
            text(args, |text| match parse_cidr(text) {
                Ok((ip, bits)) => Ok(Value::Cidr(ip, bits)),
                Err(why) => error(why),
            })
        },
        "isCIDR" => |_, _, args| text(args, |text| Ok(Value::Bool(parse_cidr(text).is_ok()))),
        "containsIP" => contains_ip,
        "containsCIDR" => contains_cidr,
        "prefixLength" => |_, _, args| match args {
            [Value::Cidr(_, bits)] => Ok(Value::Int(i64::from(*bits))),
            _ => no_such_overload(),
        },
        "masked" => |_, _, args| match args {
            [Value::Cidr(ip, bits)] => Ok(Value::Cidr(masked(*ip, *bits), *bits)),
            _ => no_such_overload(),
        },
        _ => return None,
    })
}

fn text<'v>(args: &[Value<'v>], with: impl Fn(&str) -> Out<'v>) -> Out<'v> {
    match args {
        [Value::Str(text)] => with(text.as_str()),
        _ => no_such_overload(),
    }
}

fn of_ip<'v>(args: &[Value<'v>], with: fn(IpAddr) -> Value<'static>) -> Out<'v> {
    match args {
        [Value::Ip(ip)] => Ok(with(*ip)),
        _ => no_such_overload(),
    }
}

fn ip<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Cidr(ip, _)] => Ok(Value::Ip(*ip)),
        [Value::Str(text)] => match parse_ip(text.as_str()) {
            Ok(ip) => Ok(Value::Ip(ip)),
            Err(why) => error(why),
        },
        _ => no_such_overload(),
    }
}

/// Rejects zones and IPv4 in IPv6.
fn parse_ip(text: &str) -> Result<IpAddr, String> {
    match text.parse() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(ip) => Ok(ip),
        Err(_) => Err(format!("{text:?} is not an IP address")),
    }
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || format!("{text:?} is not an address with a prefix, as 10.0.0.0/8");
    let (ip, bits) = text.rsplit_once('/').ok_or_else(wrong)?;
    let ip = parse_ip(ip)?;
    let digits = !bits.is_empty() && bits.bytes().all(|b| b.is_ascii_digit());
    let bits = match bits.parse::<u8>() {
        Ok(number) if digits && (bits.len() == 1 || !bits.starts_with('0')) => number,
        _ => return Err(wrong()),
    };
    if bits > width(ip) {
        return Err(wrong());
    }
    Ok((ip, bits))
}

fn width(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

pub(super) fn cidr_text(ip: IpAddr, bits: u8) -> String {
    format!("{ip}/{bits}")
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

fn within(ip: IpAddr, network: IpAddr, bits: u8) -> bool {
    ip.is_ipv4() == network.is_ipv4() && masked(ip, bits) == masked(network, bits)
}

fn contains_ip<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    match args {
        [Value::Cidr(network, bits), Value::Ip(ip)] => Ok(Value::Bool(within(*ip, *network, *bits))),
        [Value::Cidr(network, bits), Value::Str(text)] => match parse_ip(text.as_str()) {
            Ok(ip) => Ok(Value::Bool(within(ip, *network, *bits))),
            Err(why) => error(why),
        },
        _ => no_such_overload(),
    }
}

fn contains_cidr<'v>(_: &mut Evaluation<'v>, _: &Call, args: &[Value<'v>]) -> Out<'v> {
    let (ip, length) = match args {
        [Value::Cidr(..), Value::Cidr(ip, length)] => (*ip, *length),
        [Value::Cidr(..), Value::Str(text)] => match parse_cidr(text.as_str()) {
            Ok(parsed) => parsed,
            Err(why) => return error(why),
        },
        _ => return no_such_overload(),
    };
    match args {
        [Value::Cidr(network, bits), _] => Ok(Value::Bool(*bits <= length && within(ip, *network, *bits))),
        _ => no_such_overload(),
    }
}

fn is_link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_global_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local(ip))
}
