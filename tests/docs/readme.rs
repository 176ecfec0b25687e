//! README.md: short, in plain sentences, and each of its commands is run by something.

use super::read;

const README: &str = "README.md";
const MOST_LINES: usize = 100;
const MOST_WORDS: usize = 25;

/// Who runs the commands below a heading, all of them as they stand there.
const RUN_WHOLE: [(&str, &str); 3] = [
    ("Install it on a node", "tests/systemd/units.sh"),
    ("Assign a configuration", "tests/real/readme.rs"),
    ("Roll it out to a pool of nodes", "tests/real/readme.rs"),
];

/// Commands that `tests/run.sh` runs, or is, and its words for each.
const RUN_BY_ONE: [(&str, &str); 4] = [
    ("examples/tour.sh", "examples/tour.sh \"${@:3}\""),
    ("examples/tour.sh --modern", "/debug/kubelet-supervisor\" --modern"),
    ("cargo run --release --example demo", "--example demo"),
    ("tests/run.sh", "tests/run.sh"),
];

/// The sentences of a page: headings, code, tables and comments are none. A sentence ends with its mark before a blank, or
/// with its paragraph or item of a list.
fn sentences(page: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for (number, part) in page.split("```").enumerate() {
        paragraphs.push(String::new());
        for line in part.lines().map(str::trim).filter(|_| number % 2 == 0) {
            let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(". ");
            let item = line.strip_prefix("- ").or(numbered.filter(|_| line.starts_with(|c: char| c.is_ascii_digit())));
            if line.is_empty() || item.is_some() {
                paragraphs.push(String::new());
            }
            if !line.starts_with(['#', '|']) {
                let paragraph = paragraphs.last_mut().unwrap();
                *paragraph = format!("{paragraph} {}", item.unwrap_or(line));
            }
        }
    }
    let mut found = Vec::new();
    for paragraph in paragraphs {
        let mut words: Vec<String> = Vec::new();
        for word in plain(&paragraph).split_whitespace() {
            words.push(word.to_owned());
            if word.trim_end_matches([')', '*', '"']).ends_with(['.', '!', '?']) {
                found.push(std::mem::take(&mut words).join(" "));
            }
        }
        found.push(words.join(" "));
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Without the targets of links, and with code as words that end no sentence.
fn plain(paragraph: &str) -> String {
    let mut parts = paragraph.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    let text =
        parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest)).replace('[', "");
    let is_code = |number: usize| number % 2 == 1;
    let code = text.split('`').enumerate();
    code.map(|(number, part)| if is_code(number) { part.replace(['.', '!', '?'], "_") } else { part.to_owned() })
        .collect()
}

/// The commands below each heading, without their comments.
fn commands() -> Vec<(String, Vec<String>)> {
    let text = read(README);
    let sections = text.split("\n## ").skip(1).map(|section| {
        let heading = section.lines().next().unwrap().to_owned();
        let blocks = section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let command = |line: &str| line.split("  #").next().unwrap().trim().to_owned();
        (heading, blocks.flat_map(str::lines).map(command).collect::<Vec<_>>())
    });
    sections.filter(|(_, commands)| !commands.is_empty()).collect()
}

#[test]
fn it_is_short() {
    let lines = read(README).lines().count();
    assert!(lines <= MOST_LINES, "{lines} lines");
}

#[test]
fn no_sentence_is_long() {
    let sentences = sentences(&read(README));
    assert!(sentences.len() > 40, "{}", sentences.len());
    for sentence in sentences {
        let words = sentence.split(' ').count();
        assert!(words <= MOST_WORDS, "{words} words: {sentence}");
    }
}

#[test]
fn sentences_are_told_apart() {
    let page = "# A. B.\nOne [two. It](x.md) is `a.b. c` so.\nThree (four.) Five\n\n- Six 1.20 and\n  7.\n2. Eight!\n\n```sh\nnone. none\n```\n| no. |\n";
    let expected = ["One two.", "It is a_b_ c so.", "Three (four.)", "Five", "Six 1.20 and 7.", "Eight!"];
    assert_eq!(sentences(page), expected);
}

#[test]
fn each_command_is_run() {
    let runner = read("tests/run.sh");
    let mut seen = 0;
    for (heading, commands) in commands() {
        seen += commands.len();
        if let Some((_, file)) = RUN_WHOLE.iter().find(|(known, _)| *known == heading) {
            assert!(read(file).contains(&format!("## {heading}")), "{file} does not run {heading:?}");
            continue;
        }
        for command in commands {
            let words = RUN_BY_ONE.iter().find(|(known, _)| *known == command);
            let (_, words) = words.unwrap_or_else(|| panic!("{heading}: who runs {command:?}?"));
            assert!(runner.contains(words), "tests/run.sh does not run {command:?}");
        }
    }
    assert!(seen > 10, "{seen}");
}
