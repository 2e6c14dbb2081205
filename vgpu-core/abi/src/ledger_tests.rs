//! Tests of [`super`]: the layout against hand-written bytes, and truncated ledgers. Hostile bytes: `tests/fuzz.rs`.

use super::*;

const GOLDEN: &[u8] = include_bytes!("../testdata/limits-v1");

fn fresh() -> Vec<u8> {
    image(&Limits::parse(GOLDEN).expect("golden limits"))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_lane(bytes: &mut [u8], index: usize, fields: &[(usize, u64)]) {
    for (offset, value) in fields {
        put(bytes, FIRST_LANE_AT + index * LINE + offset, *value);
    }
}

#[test]
fn a_new_ledger_is_empty() {
    assert_eq!(fresh().len(), SIZE);
    assert_eq!(read(&fresh()), Ok(Usage::default()));
}

#[test]
fn version_1_is_laid_out_as_it_was_first_written() {
    // The layout, written out by hand: all other bytes are zero.
    let mut expected = vec![0; SIZE];
    expected[..24].copy_from_slice(b"vgpuledg\x01\0\0\0\xf7\x03\0\0\0\0\x03\0\0\0\0\0");
    expected[SIZE - 8..].copy_from_slice(b"\x89sealed\n");
    let found = fresh();
    expected[24..28].copy_from_slice(&found[24..28]);
    assert!(found == expected);
    let limits = Limits::parse(GOLDEN).expect("golden limits");
    let checksum = crc32(b"6e2a4c1e-0d5c-4f0e-9a5b-0c5b1f1b2a3c\0GPU-3f8a1c20-1111-2222-3333-444455556666");
    assert_eq!(found[24..28], checksum.to_le_bytes());
    assert_eq!(share_checksum(&limits.share, &limits.gpu), checksum);
}

#[test]
fn a_share_with_host_memory_has_two_ledgers_in_a_row() {
    let limits = Limits {
        host_memory: 1 << 30,
        ..Limits::parse(GOLDEN).expect("golden limits")
    };
    let mut bytes = image(&limits);
    assert_eq!(bytes.len(), size(&limits));
    assert!(bytes[..SIZE] == fresh() && bytes[HOST_AT..] == fresh());
    for (at, charged, pid) in [(0, 300, 42), (HOST_AT, 500, 42), (HOST_AT, 7, 43)] {
        let half = &mut bytes[at..at + SIZE];
        let total = word(half, CHARGED_AT);
        put(half, CHARGED_AT, total + charged);
        let fields = [
            (lane::GENERATION, 1),
            (lane::CHARGED[0], charged),
            (lane::PROCESS, pid),
            (lane::PID, pid),
        ];
        put_lane(half, pid as usize, &fields);
    }
    let usage = read(&bytes).expect("two ledgers");
    assert_eq!((usage.charged, usage.host), (300, 507));
    let found: Vec<(u32, u64, u64)> = usage.processes.iter().map(|p| (p.pid, p.charged, p.host)).collect();
    assert_eq!(found, [(42, 300, 500), (43, 0, 7)]);
    for end in [SIZE + 1, MAX_SIZE - 1] {
        assert_eq!(read(&bytes[..end]), Err(Damage::Size(end)));
    }
    bytes[MAX_SIZE - 1] ^= 1;
    assert_eq!(read(&bytes), Err(Damage::Unsealed), "one half alone is none");
}

/// A process may be killed between the total and the peak.
#[test]
fn the_peak_is_never_below_the_total() {
    let mut bytes = fresh();
    put(&mut bytes, CHARGED_AT, 700);
    for (written, expected) in [(0, 700), (699, 700), (900, 900)] {
        put(&mut bytes, PEAK_AT, written);
        assert_eq!(read(&bytes).map(|usage| usage.peak), Ok(expected));
    }
}

#[test]
fn every_cut_is_refused() {
    let bytes = fresh();
    for end in [0, 1, 127, SIZE - 128, SIZE - 1] {
        assert_eq!(read(&bytes[..end]), Err(Damage::Size(end)));
    }
    let mut cut = bytes;
    cut[SIZE - 4096..].fill(0);
    assert_eq!(
        read(&cut),
        Err(Damage::Unsealed),
        "a file that was grown again after a cut"
    );
}

#[test]
fn other_formats_and_versions_are_named() {
    let mut bytes = fresh();
    for other in [0, 2] {
        bytes[VERSION_AT] = other;
        assert_eq!(read(&bytes), Err(Damage::Version(other.into())));
    }
    bytes[FORMAT_AT] = 0;
    assert_eq!(read(&bytes), Err(Damage::Format));
    let mut bytes = fresh();
    put(&mut bytes, WRITER_AT, u64::MAX);
    assert_eq!(read(&bytes), Err(Damage::Writer(u64::MAX)));
}

#[test]
fn lanes_of_one_process_are_added_up() {
    let mut bytes = fresh();
    put(&mut bytes, CHARGED_AT, 700);
    let first = Stamp { lane: 3, number: 1 }.pack();
    for (index, charged) in [(3, 100), (600, 200)] {
        put_lane(
            &mut bytes,
            index,
            &[
                (lane::GENERATION, 1),
                (lane::CHARGED[0], charged),
                (lane::PROCESS, first),
                (lane::PID_NAMESPACE, 9),
                (lane::PID, 42),
            ],
        );
    }
    put_lane(
        &mut bytes,
        4,
        &[(lane::GENERATION, 2), (lane::CHARGED[0], 5), (lane::PID, 43)],
    );
    let usage = read(&bytes).expect("a ledger");
    assert_eq!(usage.charged, 700);
    assert_eq!(
        usage.processes,
        [Process {
            pid: 42,
            pid_namespace: 9,
            charged: 300,
            host: 0
        }],
        "free lanes hold nothing"
    );
}

/// Killed processes leave their lanes as they were, but not locked.
#[test]
fn a_process_lives_while_one_of_its_lanes_is_locked() {
    let mut bytes = [fresh(), fresh()].concat();
    let at = |number: usize, index: usize| number * SIZE + FIRST_LANE_AT + index * LINE;
    for (number, index, pid) in [(0, 3, 42), (0, 600, 42), (0, 4, 43), (1, 3, 42), (1, 5, 44)] {
        let fields = [(lane::GENERATION, 1), (lane::PID, pid), (lane::PID_NAMESPACE, 9)];
        put_lane(&mut bytes[number * SIZE..], index, &fields);
    }
    let locked = |lanes: &[usize]| living(&bytes, |offset| lanes.contains(&(offset as usize)));
    assert_eq!(locked(&[]), 0, "all were killed");
    assert_eq!(locked(&[at(0, 600)]), 1);
    assert_eq!(locked(&[at(0, 3), at(0, 600), at(1, 3)]), 1, "one process");
    assert_eq!(locked(&[at(0, 3), at(0, 4), at(1, 5)]), 3);
    assert_eq!(locked(&[at(0, 7)]), 0, "a free lane");
}

#[test]
fn an_operation_counts_once_the_total_or_a_record_says_so() {
    let here = |number| Stamp { lane: 7, number }.pack();
    // Operation 5 would bring the lane from 100 (even) to 130 (odd).
    assert_eq!(settled_charge(7, 5, 4, [100, 130], here(4)), 100, "intent alone");
    assert_eq!(settled_charge(7, 5, 4, [100, 130], here(5)), 130, "last writer");
    assert_eq!(
        settled_charge(7, 5, 5, [100, 130], 0),
        130,
        "recorded by the next writer"
    );
    assert_eq!(settled_charge(7, 4, 4, [100, 130], 0), 100, "130 is not published yet");
    assert_eq!(
        settled_charge(8, 5, 4, [100, 130], here(5)),
        100,
        "another lane's operation of that number"
    );
}

/// An exported object of 40 bytes that moves by operation (lane 3, 5), whose maker has charged 60 before and 20 after.
fn with_object(from: u64, holders: &[u64]) -> Vec<u8> {
    let mut bytes = fresh();
    put(&mut bytes, CHARGED_AT, 60);
    for index in [3, 8] {
        let claim = Stamp { lane: index, number: 1 }.pack();
        let fields = [(lane::GENERATION, 1), (lane::PROCESS, claim), (lane::PID, index as u64)];
        put_lane(&mut bytes, index, &fields);
    }
    let charge = [
        (lane::SEQUENCE, 5),
        (lane::APPLIED, 4),
        (lane::CHARGED[0], 60),
        (lane::CHARGED[1], 20),
    ];
    put_lane(&mut bytes, 3, &charge);
    let at = FIRST_OBJECT_AT + 7 * LINE;
    let object = [(object::GENERATION, 1), (object::BYTES, 40), (object::FROM, from)];
    for (offset, value) in object {
        put(&mut bytes, at + offset, value);
    }
    for (place, holder) in holders.iter().enumerate() {
        put(&mut bytes, at + object::HOLDERS_AT + place * 8, *holder);
    }
    bytes
}

fn by_pid(bytes: &[u8]) -> Vec<(u32, u64)> {
    let usage = read(bytes).expect("a ledger");
    assert_eq!(usage.processes.iter().map(|p| p.charged).sum::<u64>(), usage.charged);
    usage.processes.iter().map(|p| (p.pid, p.charged)).collect()
}

#[test]
fn an_exported_object_is_charged_once_at_every_instant_and_shown_with_who_holds_it() {
    let stamp = |lane, number| Stamp { lane, number }.pack();
    let mut bytes = with_object(stamp(3, 5), &[stamp(3, 1), stamp(8, 1)]);
    assert_eq!(by_pid(&bytes), [(3, 60), (8, 0)], "intended");
    put(&mut bytes, WRITER_AT, stamp(3, 5));
    assert_eq!(by_pid(&bytes), [(3, 60), (8, 0)], "moved: its maker holds it still");
    put_lane(&mut bytes, 3, &[(lane::APPLIED, 5)]);
    put(&mut bytes, WRITER_AT, stamp(8, 1));
    assert_eq!(by_pid(&bytes), [(3, 60), (8, 0)], "recorded by the next writer");
    // The maker is dead, and its lane was freed.
    let mut bytes = with_object(0, &[stamp(3, 1), stamp(8, 1)]);
    put(&mut bytes, CHARGED_AT, 40);
    put_lane(&mut bytes, 3, &[(lane::GENERATION, 2)]);
    assert_eq!(by_pid(&bytes), [(8, 40)], "passed on");
    put_lane(&mut bytes, 8, &[(lane::GENERATION, 3)]);
    assert_eq!(by_pid(&bytes), [(0, 40), (8, 0)], "nobody known: never nobody's");
    put(&mut bytes, FIRST_OBJECT_AT + 7 * LINE + object::BYTES, u64::MAX);
    assert_eq!(read(&bytes), Err(Damage::Object(7)));
}

/// A reaper died after it subtracted a charge from the total and before it freed the claim.
#[test]
fn what_a_reap_has_taken_out_is_held_by_nobody() {
    for (index, expected) in [(3, [(3, 0), (8, 40)]), (LANES + 7, [(3, 60), (8, 0)])] {
        let claim = |lane| Stamp { lane, number: 1 }.pack();
        let mut bytes = with_object(0, &[claim(8)]);
        put_lane(&mut bytes, 3, &[(lane::CHARGED[1], 60), (lane::APPLIED, 5)]);
        put(&mut bytes, CHARGED_AT, 100);
        let reap = [(lane::SEQUENCE, 1), (lane::CHARGED[1], claim(index))];
        put_lane(&mut bytes, REAPER, &reap);
        assert_eq!(by_pid(&bytes), [(3, 60), (8, 40)], "intended");
        put(&mut bytes, CHARGED_AT, expected[0].1 + expected[1].1);
        put(
            &mut bytes,
            WRITER_AT,
            Stamp {
                lane: REAPER,
                number: 1,
            }
            .pack(),
        );
        assert_eq!(by_pid(&bytes), expected);
    }
}

#[test]
fn stamps_keep_both_parts() {
    for stamp in [
        Stamp { lane: 0, number: 0 },
        Stamp {
            lane: LANES + OBJECTS - 1,
            number: Stamp::LAST,
        },
    ] {
        assert_eq!(Stamp::unpack(stamp.pack()), stamp);
    }
}
