//! Parts of a timestamp or a duration. Time zones are UTC or offsets; region names are not supported.

use super::go_time::{self, Date, SECOND};
use crate::node::Function;
use crate::value::{Fault, Out, Value, error, no_such_overload};

pub(super) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "getFullYear" => |_, _, args| of_date(args, |date, _| date.year),
        "getMonth" => |_, _, args| of_date(args, |date, _| date.month - 1),
        "getDate" => |_, _, args| of_date(args, |date, _| date.day),
        "getDayOfMonth" => |_, _, args| of_date(args, |date, _| date.day - 1),
        "getDayOfWeek" => |_, _, args| of_date(args, |_, days| (days + 4).rem_euclid(7)),
        "getDayOfYear" => |_, _, args| {
            of_date(args, |date, days| {
                days - go_time::days(Date {
                    year: date.year,
                    month: 1,
                    day: 1,
                })
            })
        },
        "getHours" => |_, _, args| of_time(args, 3_600 * SECOND, |n| n / (3_600 * SECOND) % 24),
        "getMinutes" => |_, _, args| of_time(args, 60 * SECOND, |n| n / (60 * SECOND) % 60),
        "getSeconds" => |_, _, args| of_time(args, SECOND, |n| n / SECOND % 60),
        "getMilliseconds" => |_, _, args| of_time(args, SECOND / 1_000, |n| n / (SECOND / 1_000) % 1_000),
        _ => return None,
    })
}

/// Nanoseconds since 1970 in the requested time zone.
fn local(args: &[Value<'_>]) -> Result<i128, Fault> {
    match args {
        [Value::Timestamp(t, _)] => Ok(*t),
        [Value::Timestamp(t, _), Value::Str(zone)] => Ok(t + i128::from(offset(zone.as_str())?) * SECOND),
        _ => no_such_overload(),
    }
}

/// The zone's offset in seconds east of UTC.
fn offset(zone: &str) -> Result<i64, Fault> {
    if matches!(zone, "" | "UTC") {
        return Ok(0);
    }
    let unknown = || format!("unknown time zone {zone}");
    let Some((hours, minutes)) = zone.split_once(':') else {
        return error(unknown());
    };
    match (hours.parse::<i64>(), minutes.parse::<i64>()) {
        (Ok(h), Ok(m)) if h.abs() < 1_000 && (0..1_000).contains(&m) => {
            let minutes = if hours.starts_with('-') { h * 60 - m } else { h * 60 + m };
            Ok(minutes * 60)
        }
        _ => error(unknown()),
    }
}

fn of_date<'v>(args: &[Value<'v>], part: fn(Date, i64) -> i64) -> Out<'v> {
    let days = local(args)?.div_euclid(86_400 * SECOND) as i64;
    Ok(Value::Int(part(go_time::date(days), days)))
}

/// A part of the time of day, or for a duration the number of whole units in it; for milliseconds only those within
/// the second.
fn of_time<'v>(args: &[Value<'v>], unit: i128, part: fn(i128) -> i128) -> Out<'v> {
    let number = match args {
        [Value::Duration(d)] => i128::from(*d) / unit,
        _ => part(local(args)?.rem_euclid(86_400 * SECOND)),
    };
    Ok(Value::Int(number as i64))
}
