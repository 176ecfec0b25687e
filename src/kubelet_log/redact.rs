//! What of a kubelet's line may be shown.
//!
//! Lines of a kubelet can hold what must not be in an event: v1.20 prints the whole configuration file when it finds an
//! unknown field, and a configuration can hold credentials (`staticPodURLHeader`). So whatever looks like a dump or a
//! credential is taken out, rather too much than too little.

use super::dump;
use super::reader::records;
use super::record::Kind;
use kubelet_config::bounds::shortened;

/// Longest line that is shown, in characters; an event's message holds 1024 bytes.
const LONGEST: usize = 512;

/// What stands for something taken out.
const REMOVED: &str = "[…]";

/// From these texts on nothing of a line is shown: what follows is a secret, in a form that
/// depends on who prints it (YAML, JSON, Go).
const SECRETS: [&str; 8] = [
    "staticpodurlheader",
    "staticpodurl",
    "manifest-url-header",
    "manifest-url",
    "authorization:",
    "authorization=",
    "authorization\":",
    // Go's net/http before 1.20 quotes it.
    "invalid header field value",
];

/// The value after these is a secret.
const KEYS: [&str; 7] = ["bearer ", "basic ", "password=", "password: ", "passwd=", "token=", "secret="];

/// So much of a text is read, in characters. What is longer is a dump; as one that is not closed, it hides what follows.
const READ: usize = 16 << 10;

/// A record of the kubelet's without secrets, dumps and control characters, cut at 512 characters.
pub(crate) fn redact(text: &str) -> String {
    let flat: String =
        without_excerpt(text).trim().chars().take(READ).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let open = cut_secrets(&flat);
    let open = without_pem(&open);
    let open = dump::emptied(&open);
    let open = without_path_dump(&open);
    let open: Vec<String> = mask_values(&open).split_whitespace().map(mask_token).collect();
    shortened(&open.join(" "), LONGEST, 0)
}

/// The records of these lines, each as a line that may be shown. Without stacks, and without what belongs to a record whose
/// beginning is not there: that may be of the configuration.
pub(crate) fn shown(lines: &[String]) -> Vec<String> {
    let records = records(lines.iter().map(String::as_str));
    let whole = records.iter().filter(|record| match record.kind {
        Kind::Trace | Kind::Indented => false,
        Kind::Plain => !record.message.starts_with(['}', ']']),
        _ => true,
    });
    whole.map(|record| redact(&record.line())).filter(|line| !line.is_empty()).collect()
}

/// The decoders quote the file around what they stumbled over, which may be anything: what they say of it comes before.
fn without_excerpt(text: &str) -> &str {
    let ends = [", error found in #", " is missing in '"];
    let end = ends.iter().filter_map(|start| text.find(start)).min();
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}

fn cut_secrets(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    // Of two that begin alike the longer one is the name that stands there.
    let first = SECRETS.iter().filter_map(|word| Some((lower.find(word)?, std::cmp::Reverse(word.len())))).min();
    match first.and_then(|(at, length)| text.get(..at + length.0)) {
        Some(kept) => format!("{kept} {REMOVED}"),
        None => text.to_owned(),
    }
}

fn without_pem(text: &str) -> String {
    const BEGIN: &str = "-----BEGIN ";
    const END: &str = "-----END ";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, block)) = rest.split_once(BEGIN) {
        out.push_str(before);
        out.push_str(REMOVED);
        // A block that does not end hides all that follows.
        rest = block.split_once(END).and_then(|(_, name)| name.split_once("-----")).map_or("", |(_, after)| after);
    }
    out + rest
}

/// Since v1.24 a validation error ends in `, path: &TypeMeta{…}`, which is a struct and no path.
fn without_path_dump(text: &str) -> String {
    let Some((before, dump)) = text.split_once(", path: &") else { return text.to_owned() };
    match dump.split_once("{…}") {
        Some((name, after)) if name.chars().all(char::is_alphanumeric) => format!("{before}{after}"),
        _ => text.to_owned(),
    }
}

/// Hides what follows [`KEYS`], up to a blank or a quote.
fn mask_values(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let lower = rest.to_ascii_lowercase();
        let next = KEYS.iter().filter_map(|key| Some(lower.find(key)? + key.len())).min();
        let Some((kept, value)) = next.and_then(|at| Some((rest.get(..at)?, rest.get(at..)?))) else {
            return out + rest;
        };
        out.push_str(kept);
        out.push_str(REMOVED);
        let opening = value.trim_start_matches(['"', '\'', '\\']);
        rest = opening.trim_start_matches(|c: char| !c.is_whitespace() && !"\"'\\,&;)".contains(c));
    }
}

/// Hides tokens and keys in a word: JWTs, long base64, the user and the query in a URL.
fn mask_token(word: &str) -> String {
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((address, _)) = rest.split_once('?')
    {
        return format!("{}?{REMOVED}", mask_token(&format!("{scheme}://{address}")));
    }
    if let Some((scheme, rest)) = word.split_once("://")
        && let Some((user, host)) = rest.rsplit_once('@')
        && !user.contains('/')
    {
        return format!("{scheme}://{REMOVED}@{host}");
    }
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    if word.len() >= 40 && word.chars().all(is_base64) && !word.starts_with('/') && is_mixed(word) {
        return REMOVED.to_owned(); // a line of a PEM block
    }
    let mut out = String::new();
    for part in word.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !"+=_-.".contains(c)) {
        let (body, end) = match part.char_indices().next_back() {
            Some((at, c)) if !c.is_ascii_alphanumeric() && !"+=_-.".contains(c) => part.split_at(at),
            _ => (part, ""),
        };
        // 40: longer than any name with digits and capitals, shorter than any token. Hexadecimal
        // digests and container ids have one case only.
        let secret = body.starts_with("eyJ") && body.len() >= 20
            || body.split('.').any(|piece| piece.len() >= 40 && is_mixed(piece));
        out.push_str(if secret { REMOVED } else { body });
        out.push_str(end);
    }
    out
}

fn is_mixed(text: &str) -> bool {
    let has = |kind: fn(&char) -> bool| text.chars().any(|c| kind(&c));
    has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && has(char::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn secrets_and_dumps_are_taken_out() {
        for (line, expected) in [
            (
                "plain, with path=/var/lib/kubelet/pods/1b2c and \"quotes\"",
                "plain, with path=/var/lib/kubelet/pods/1b2c and \"quotes\"",
            ),
            ("x &KubeletConfiguration{A:{B},C:map[d:e],} y", "x &KubeletConfiguration{…} y"),
            ("error: e, path: &TypeMeta{Kind:,APIVersion:,}", "error: e"),
            ("a StaticPodURLHeader:map[X-Key:[s3cret]] b", "a StaticPodURLHeader […]"),
            ("a \"staticPodURLHeader\":\\n  X-Key: s3cret", "a \"staticPodURLHeader […]"),
            ("FLAG: --manifest-url-header=\"a:b\"", "FLAG: --manifest-url-header […]"),
            ("staticPodURL: https://host/s3cret: not reachable", "staticPodURL […]"),
            ("FLAG: --manifest-url=\"https://host/s3cret\"", "FLAG: --manifest-url […]"),
            ("get https://host/pods?X-Signature=s3cret: 403", "get https://host/pods?[…] 403"),
            (
                "net/http: invalid header field value \"s3cret\\n\" for key X-Key",
                "net/http: invalid header field value […]",
            ),
            ("got Authorization: Basic dXNlcjpwYXNz end", "got Authorization: […]"),
            ("a password: s3cret, and passwd=s3cret", "a password: […], and passwd=[…]"),
            ("used Bearer abc.def-ghi, and went on", "used Bearer […], and went on"),
            ("token=abc&x=1 password=\"pw\" end", "token=[…]&x=1 password=[…]\" end"),
            ("labels map[a:b[c]] here", "labels map[…] here"),
            ("never closed {secret: x", "never closed {…"),
            ("key -----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY----- after", "key […] after"),
            ("key -----BEGIN RSA PRIVATE KEY-----\\nMIIE", "key […]"),
            ("MIIEpAIBAAKCAQEAyVdVnXj8Qh2yq2h0k5oJm0Yw0m3k/8J8c+1G1n3Q0d0x9u7a", "[…]"),
            ("get https://me:pw@host/path?x", "get https://[…]@host/path?[…]"),
            ("jwt eyJhbGciOiJSUzI1NiIsImtpZCI6Ij.eyJpc3MiOiJrdWJl.c2ln done", "jwt […] done"),
            (
                "container 4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945 exited",
                "container 4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945 exited",
            ),
            ("\u{1b}[31mred\u{7}\tand\0more", "[31mred and more"),
        ] {
            assert_eq!(redact(line), expected, "{line}");
        }
        assert_eq!(redact(&"é".repeat(600)).chars().count(), 512);
        assert_eq!(redact(&"é ".repeat(256)).chars().count(), 511);
    }

    #[test]
    fn records_are_shown_whole_and_what_they_quote_is_not() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        for (text, expected) in [
            // v1.20 and v1.37 print the configuration.
            (
                "W1121 10:00:00.000000 1 a.go:1] strict decoder error for {\n  \"staticPodURLHeader\": {\n    \"X\": [\n      \"s3cret\"\n    ]\n  }\n}: found unknown field: a\nI1121 10:00:00.000000 1 b.go:1] next",
                vec![
                    "W1121 10:00:00.000000 1 a.go:1] strict decoder error for {…",
                    "I1121 10:00:00.000000 1 b.go:1] next",
                ],
            ),
            ("  \"X\": [\n      \"s3cret\"\n    ]\n  }\n}: found\nplain words", vec!["plain words"]),
            (
                "I1121 10:00:00.000000 1 a.go:1] \"Effective\" config=<\n\tstaticPodURLHeader:\n\t  X: [s3cret]\n > node=\"n\"",
                vec!["I1121 10:00:00.000000 1 a.go:1] \"Effective\" config=\"[…]\" node=\"n\""],
            ),
            (
                "E1121 10:00:00.000000 1 a.go:1] \"command failed\" err=<\n\ta\n\tb\n > node=\"n\"",
                vec!["E1121 10:00:00.000000 1 a.go:1] \"command failed\" err=\"a b\" node=\"n\""],
            ),
            ("{\"ts\":1,\"msg\":\"said\",\"err\":\"why\",\"config\":\"s3cret\"}", vec!["said: why"]),
            ("panic: a\n\tb\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:1 +0x1", vec!["panic: a b"]),
        ] {
            assert_eq!(shown(&lines(text)), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(line in "\\PC{0,80}|[ -~\\t]{0,900}|.{0,700}") {
            let shown = redact(&line);
            prop_assert!(shown.chars().count() <= 512 && !shown.chars().any(char::is_control), "{shown:?}");
        }

        #[test]
        fn what_is_in_a_dump_is_never_shown(before in "[a-z ]{0,9}", inside in "[a-z0-9{}:, \\[\\]]{0,30}", open in "&A\\{|A\\{|\\[\\]A\\{|\\{Name:|\\{\"a\":|map\\[|Authorization: |staticPodURLHeader") {
            let shown = redact(&format!("{before}{open}XYZZY{inside}"));
            prop_assert!(!shown.contains("XYZZY"), "{shown}");
        }

        /// Whole or cut, in a sentence with braces of its own.
        #[test]
        fn nor_is_it_in_any_form_of_a_dump(form in 0..FORMS.len(), outer in 0..FORMS.len(), before in 0..SENTENCES.len(), cut in 0..40_usize, secret in "XYZZY[}\\]\"]{0,2}[a-z ]{0,3}") {
            let inner = FORMS[form].replace('%', &secret);
            let dump = FORMS[outer].replace('%', &format!("{inner}, b"));
            let text = format!("{} {dump} {}", SENTENCES[before], SENTENCES[0]);
            let end = text.char_indices().rev().nth(cut).map_or(text.len(), |(at, _)| at);
            let end = end.max(text.find("XYZZY").unwrap_or_default() + 5);
            for text in [text.as_str(), text.get(..end).unwrap()] {
                let shown = redact(text);
                prop_assert!(!shown.contains("XYZZY"), "{text}: {shown}");
                let is_whole = shown.starts_with(SENTENCES[before]);
                prop_assert!(is_whole || secret.contains('}'), "{text}: {shown}");
            }
        }
    }

    /// As fmt prints with %v, %+v and %#v, as JSON and YAML are written, as spew does.
    const FORMS: [&str; 14] = [
        "&v1.A{B:%, C:1}",
        "v1.A{B:\"%\", C:1}",
        "{Name:% Field:b}",
        "{% b}",
        "[{a} {%}]",
        "[]v1.A{v1.A{B:%}}",
        "[]string{\"%\"}",
        "map[a:% b:c]",
        "map[string]string{\"a\":\"%\"}",
        "map[string]interface {}{\"a\":\"%\"}",
        "{\"a\":\"%\"}",
        "{ \"a\": \"%\" }",
        "{ a: % }",
        "(v1.A) { B: (string) (len=5) \"%\" }",
    ];

    const SENTENCES: [&str; 4] =
        ["it must be {30s}", "expect { or n, but found", "invalid character '{' in", "[invalid configuration: a, of"];
}
