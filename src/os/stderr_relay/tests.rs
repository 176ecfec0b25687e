//! Tests of the relay.

use super::*;

/// A relay into a pipe, and what comes out of it, read by a thread of its own.
fn relay(held: bool) -> (StderrRelay, PipeWriter, std::thread::JoinHandle<Vec<u8>>) {
    let (mut reader, mut sink) = io::pipe().unwrap();
    let (relay, writer) = StderrRelay::start(held, move |bytes| pass_on(&mut sink, bytes)).unwrap();
    let collect = move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        all
    };
    (relay, writer, std::thread::Builder::new().spawn(collect).unwrap())
}

fn ends(relay: &StderrRelay) {
    assert!(is_readable(&relay.ended, PollTimeout::from(60_000_u16)), "it does not end");
}

fn log_tail(relay: &StderrRelay) -> Vec<String> {
    let text = String::from_utf8_lossy(&read(&relay.output).unwrap()).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|n| format!("I1121 03:24:02.289282 30620 server.go:416] line {n}\n").into_bytes()).collect()
}

/// Writes all, closes, and waits for the end.
fn through(pieces: &[&[u8]]) -> (Vec<u8>, Vec<String>) {
    let (relay, mut writer, sink) = relay(false);
    for piece in pieces {
        writer.write_all(piece).unwrap();
    }
    drop(writer);
    ends(&relay);
    (sink.join().unwrap(), log_tail(&relay))
}

#[test]
fn bytes_pass_untouched_and_lines_are_put_together() {
    let (out, log_tail) = through(&[b"fir", b"st\nsec", b"ond\n\n", b"\xff\xfe\0bin\n", b"no end"]);
    assert_eq!(out, b"first\nsecond\n\n\xff\xfe\0bin\nno end");
    assert_eq!(log_tail, ["first", "second", "\u{fffd}\u{fffd}\0bin", "no end"]);
}

#[test]
fn a_flood_arrives_complete_and_in_order() {
    let flood = lines(30_000);
    let (out, log_tail) = through(&[&flood]);
    assert!(out == flood, "{} of {} bytes", out.len(), flood.len());
    assert_eq!(log_tail.len(), LINES);
    assert!(log_tail[0].ends_with("line 29936") && log_tail[63].ends_with("line 29999"), "{log_tail:?}");
}

#[test]
fn a_line_without_an_end_is_cut_in_the_log_tail_only() {
    let huge = vec![b'x'; 3 << 20];
    let (out, log_tail) = through(&[b"before\n", &huge, b"\nafter\n"]);
    assert_eq!(out.len(), huge.len() + 14);
    assert_eq!(log_tail.iter().map(String::len).collect::<Vec<_>>(), [6, LINE, 5]);
}

#[test]
fn a_sink_that_is_gone_stops_nobody() {
    let (reader, mut sink) = io::pipe().unwrap();
    drop(reader);
    let (relay, mut writer) = StderrRelay::start(false, move |bytes| pass_on(&mut sink, bytes)).unwrap();
    writer.write_all(&lines(60_000)).unwrap();
    drop(writer);
    ends(&relay);
    assert!(log_tail(&relay)[63].ends_with("line 59999"));
}

#[test]
fn the_reason_is_not_pushed_out_by_the_stack_traces_after_it() {
    let mut text = lines(100);
    text.extend_from_slice(b"F1121 03:24:02.289282 30620 server.go:269] the reason\n");
    for n in 0..2000 {
        text.extend_from_slice(format!("goroutine {n} [running]:\nmain.main()\n\t/a/b.go:12 +0x1\n\n").as_bytes());
    }
    let (out, log_tail) = through(&[&text]);
    assert!(out == text);
    assert_eq!(crate::kubelet_log::fatal(&log_tail).as_deref(), Some("the reason"));
}

#[test]
fn what_was_written_is_passed_on_before_the_end() {
    let (mut out, mut sink) = io::pipe().unwrap();
    let (relay, mut writer) = StderrRelay::start(false, move |bytes| pass_on(&mut sink, bytes)).unwrap();
    // A descendant that lives on keeps the pipe open.
    let _descendant = writer.try_clone().unwrap();
    let text = lines(500); // fits into the sink's pipe
    writer.write_all(&text).unwrap();
    drop(writer);
    relay.drain(Duration::from_secs(10));
    let mut arrived = vec![0; text.len()];
    out.read_exact(&mut arrived).unwrap();
    assert!(arrived == text && !relay.is_ended());
}

#[test]
fn a_flood_is_cut_at_line_ends() {
    let pieces = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = pieces.clone();
    let (relay, mut writer) =
        StderrRelay::start(false, move |bytes: &[u8]| seen.lock().unwrap().push(bytes.to_vec())).unwrap();
    writer.write_all(&lines(10_000)).unwrap();
    drop(writer);
    ends(&relay);
    let pieces = pieces.lock().unwrap();
    assert!(pieces.concat() == lines(10_000));
    let full = pieces.iter().filter(|piece| piece.len() > CHUNK - 100);
    assert!(full.clone().count() > 0 && full.clone().all(|piece| piece.ends_with(b"\n")));
}

#[test]
fn what_is_held_is_passed_on_once_it_is_released_or_never() {
    for released in [true, false] {
        let (relay, mut writer, sink) = relay(true);
        writer.write_all(b"one\ntwo\n").unwrap();
        while !(relay.is_idle() && read(&relay.output).unwrap() == b"one\ntwo\n") {
            std::thread::yield_now();
        }
        if released {
            relay.release();
        }
        writer.write_all(b"three\n").unwrap();
        drop(writer);
        ends(&relay);
        let passed: &[u8] = if released { b"one\ntwo\nthree\n" } else { b"" };
        assert_eq!(sink.join().unwrap(), passed);
        assert_eq!(log_tail(&relay), ["one", "two", "three"]);
    }
}

#[test]
fn no_more_is_held_than_a_preflights_output() {
    let (relay, mut writer, _sink) = relay(true);
    writer.write_all(&vec![b'x'; HELD + HELD / 2]).unwrap();
    drop(writer);
    ends(&relay);
    assert_eq!(read(&relay.output).unwrap().len(), HELD);
}

#[test]
fn the_ring_keeps_within_its_bounds() {
    let mut tail = TailBuffer::default();
    let line = [vec![b'y'; 700], vec![b'\n']].concat();
    for _ in 0..100 {
        tail.push(&line);
    }
    assert_eq!(tail.lines.len(), BYTES / 700);
    assert!(tail.text().len() <= BYTES + BYTES / 700);
}
