//! Every order of events in a small world: breadth-first over the real `State::step`, and states that are alike are met once.
//!
//! A world is told from others by the text of all that is known in it, with each moment as it is seen from now, and each
//! question as so many before the latest one. One in some worlds is also left in peace, and must come to what is wanted.

mod answers;
mod laws;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::worlds::threads;
use world::{BEGINS, Content, Event, Left, World};

/// One in so many worlds is left in peace.
const RESTS: u64 = 8;
/// What happened longer ago than this may as well have happened then.
const LONG_AGO: Duration = Duration::from_secs(200);
/// Before the ticket of the latest question.
const LAST: &str = "asks: Asks { last: ";
/// Parts of the set of hashes, each with its own lock.
const SHARDS: usize = 64;

/// A world, and the event that led to it from another of the list.
struct Met {
    from: usize,
    event: Event,
}

/// Where the searches begin, the smallest worlds first.
fn roots() -> Vec<(String, World)> {
    use Content::{Better, Dies, Good, Refused};
    let all =
        |edits: &[&'static [Content]]| Left { edits: edits.to_vec(), resets: 1, crashes: 1, outages: 1, silences: 1 };
    let mut proven = World::new(all(&[&[Good]]));
    proven.happen(Event::Edit(Good));
    proven.pass_for(Duration::from_secs(120));
    proven.left = all(&[&[Better, Dies, Refused]]);
    let fresh = World::new(all(&[&[Better, Dies], &[Good, Dies]]));
    let mut roots = Vec::new();
    // Of crashes, outages and silences: one kind, two kinds, all of them.
    for kinds in [1_u8, 2, 4, 3, 5, 6, 7] {
        for (name, world) in [("a proven version", &proven), ("nothing assigned", &fresh)] {
            let mut world = world.clone();
            let left = &mut world.left;
            (left.crashes, left.outages, left.silences) = (kinds & 1, kinds >> 1 & 1, kinds >> 2);
            let kinds =
                ["a crash", "an outage", "a silence"].into_iter().enumerate().filter(|(at, _)| kinds >> at & 1 == 1);
            let kinds = kinds.map(|(_, kind)| kind).collect::<Vec<_>>().join(", ");
            roots.push((format!("{name} with {kinds}"), world));
        }
    }
    roots
}

/// The search so far.
struct Search {
    met: [Mutex<HashSet<u64>>; SHARDS],
    steps: AtomicU64,
    rests: AtomicU64,
    until: Instant,
    over: AtomicBool,
    failure: Mutex<Option<(usize, Event, String)>>,
}

impl Search {
    /// All that follows from these worlds by one event, each with where it came from.
    fn expand(&self, frontier: Vec<(usize, World)>) -> (Vec<(usize, Event, World)>, usize) {
        let (next, total) = (AtomicUsize::new(0), frontier.len());
        let frontier: Vec<_> = frontier.into_iter().map(|it| Mutex::new(Some(it))).collect();
        let found = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..threads() {
                scope.spawn(|| {
                    let (mut text, mut mine) = (String::new(), Vec::new());
                    while let Some(point) = frontier.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if self.over.load(Ordering::Relaxed) || Instant::now() > self.until {
                            self.over.store(true, Ordering::Relaxed);
                            break;
                        }
                        let Some((from, world)) = point.lock().unwrap().take() else { continue };
                        for event in world.events() {
                            self.follow(from, event, &world, &mut text, &mut mine);
                        }
                    }
                    found.lock().unwrap().append(&mut mine);
                });
            }
        });
        let done = next.into_inner().min(total);
        (found.into_inner().unwrap(), done)
    }

    fn follow(
        &self,
        from: usize,
        event: Event,
        world: &World,
        text: &mut String,
        found: &mut Vec<(usize, Event, World)>,
    ) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let mut world = world.clone();
        let panicked = catch_unwind(AssertUnwindSafe(|| world.happen(event))).is_err();
        let mut why = world.violation.clone().or(panicked.then(|| "it panics".to_owned()));
        let hash = fingerprint(&world, text);
        if why.is_none() && !self.met[usize::try_from(hash % SHARDS as u64).unwrap()].lock().unwrap().insert(hash) {
            return;
        }
        if why.is_none() && hash.is_multiple_of(RESTS) {
            self.rests.fetch_add(1, Ordering::Relaxed);
            let mut rests = world.clone();
            rests.rests();
            why = rests.violation;
        }
        if let Some(why) = why {
            self.over.store(true, Ordering::Relaxed);
            self.failure.lock().unwrap().get_or_insert((from, event, why));
            return;
        }
        found.push((from, event, world));
    }
}

/// Searches for so long; true if no law was broken.
pub fn search(seconds: u64) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds);
    let roots = roots();
    let count = roots.len();
    roots.into_iter().enumerate().all(|(at, (name, world))| {
        let left = until.saturating_duration_since(Instant::now());
        search_from(&name, world, left / u32::try_from(count - at).unwrap_or(1))
    })
}

fn search_from(name: &str, root: World, time: Duration) -> bool {
    let search = Search {
        met: std::array::from_fn(|_| Mutex::default()),
        steps: AtomicU64::new(0),
        rests: AtomicU64::new(0),
        until: Instant::now() + time,
        over: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let mut list = vec![Met { from: 0, event: Event::Pass }];
    let (mut frontier, mut depth, mut part) = (vec![(0, root.clone())], 0, String::new());
    while !frontier.is_empty() {
        let total = frontier.len();
        let (found, done) = search.expand(frontier);
        if search.over.load(Ordering::Relaxed) {
            list.extend(found.iter().map(|(from, event, _)| Met { from: *from, event: *event }));
            part = format!(", and {}% of {depth} + 1", 100 * done / total);
            break;
        }
        depth += 1;
        frontier = found
            .into_iter()
            .map(|(from, event, world)| {
                list.push(Met { from, event });
                (list.len() - 1, world)
            })
            .collect();
    }
    let (steps, rests) = (search.steps.into_inner(), search.rests.into_inner());
    println!(
        "every order of events from {name}: {} states to depth {depth}{part}; {steps} events, {rests} worlds left in peace",
        list.len()
    );
    let Some((mut at, event, why)) = search.failure.into_inner().unwrap() else { return true };
    let mut path = vec![event];
    while at > 0 {
        path.push(list[at].event);
        at = list[at].from;
    }
    path.reverse();
    tell(root, &path, &why);
    false
}

/// What led to it.
fn tell(mut world: World, path: &[Event], why: &str) {
    println!("{why}");
    world.journal = Some(Vec::new());
    for event in path {
        world.happen(*event);
        world.journal.iter_mut().flat_map(|it| it.drain(..)).for_each(|line| println!("    {line}"));
        let runs = world.process.as_ref().map(|it| it.content.map_or("local".to_owned(), |it| format!("{it:?}")));
        let phase = format!("{:?}", world.state.records().phase);
        let phase = phase.split('(').next().unwrap_or_default();
        println!("  {:?}: {event:?}, then {runs:?} runs, {phase}", world.now.saturating_sub(BEGINS));
    }
    if world.violation.is_none() {
        world.rests();
        world.journal.iter_mut().flat_map(|it| it.drain(..)).for_each(|line| println!("    {line}"));
    }
}

/// Two worlds that go on alike have the same.
fn fingerprint(world: &World, text: &mut String) -> u64 {
    world.fingerprint(text);
    let (bytes, mut from, mut at) = (text.as_bytes(), 0, 0);
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|it| it.parse::<u64>().ok());
    let digits = |at: usize| bytes[at..].iter().take_while(|it| it.is_ascii_digit()).count();
    let last = text.find(LAST).map(|at| at + LAST.len());
    let last = last.and_then(|at| number(&bytes[at..at + digits(at)])).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    while at < bytes.len() {
        let before = &bytes[..at];
        let inside = before.last().is_some_and(|it| it.is_ascii_alphanumeric() || b"\"-.:".contains(it));
        if !bytes[at].is_ascii_digit() || inside {
            at += 1;
            continue;
        }
        let whole = at + digits(at);
        let fraction = usize::from(bytes.get(whole) == Some(&b'.'));
        let end = whole + fraction * (1 + digits((whole + fraction).min(bytes.len())));
        let is_span = bytes.get(end) == Some(&b's');
        let token = &bytes[at..end];
        hasher.write(&bytes[from..at]);
        (from, at) = (end, end);
        match number(token) {
            _ if is_span => match std::str::from_utf8(token).ok().and_then(|it| it.parse().ok()) {
                // A moment: so long from now, or ago.
                Some(seconds) if seconds >= BEGINS.saturating_sub(LONG_AGO).as_secs_f64() => {
                    let moment = Duration::from_secs_f64(seconds);
                    hasher.write_u128(moment.saturating_sub(world.now).as_micros());
                    hasher.write_u128(world.now.saturating_sub(moment).min(LONG_AGO).as_micros());
                }
                _ => hasher.write(token),
            },
            Some(_) if before.ends_with(LAST.as_bytes()) => {}
            Some(starts) if before.ends_with(b" starts: ") => hasher.write_u64(starts.min(1)),
            // A ticket.
            Some(it)
                if (before.ends_with(b"ticket: ") || before.ends_with(b"("))
                    && (1..200).contains(&(last + 1).saturating_sub(it)) =>
            {
                hasher.write_u64(last - it);
            }
            _ => hasher.write(token),
        }
    }
    hasher.write(&bytes[from..]);
    hasher.finish()
}
