//! Signatures of payloads: minisign's, prehashed, over the very bytes of a ConfigMap's key; what else counts is in the trusted
//! comment, which is signed with them.

use std::collections::{BTreeMap, BTreeSet};

use minisign_verify::{Error, PublicKey, Signature};
use serde::{Deserialize, Serialize};

use crate::assignment::is_subdomain;
use crate::digest::{decode_base64, sha256};
use crate::flags;
use crate::hazard::Acknowledged;
use crate::reported::bounded;
use crate::source::{Merge, is_safe_key};

/// What the name of the key with a signature ends with; before it stands the key that is signed.
pub const KEY_SUFFIX: &str = ".minisig";

/// What a trusted comment says the bytes are for.
const KIND: &str = "kubelet-config";

/// Bytes of a signature file. minisign's comments have no more than 1 KiB and 8 KiB.
const MAX_BYTES: usize = 16 << 10;

/// A public key of the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct TrustedKey {
    /// As the policy calls it.
    pub name: String,
    /// As minisign prints it: hexadecimal, without leading zeros.
    pub id: String,
    /// From then on what it signs is not taken up any more, seconds since 1970.
    pub not_after: Option<u64>,
    key: PublicKey,
}

impl TrustedKey {
    /// Reads the second line of minisign's public key file.
    ///
    /// # Errors
    /// It is none.
    pub fn new(name: String, text: &str) -> Result<Self, String> {
        let wrong = || format!("{:?} is no public key of minisign: 56 characters that begin with RW", shown(text));
        let key = PublicKey::from_base64(text.trim()).map_err(|_| wrong())?;
        let id = key_id(text.trim()).ok_or_else(wrong)?;
        Ok(Self { name, id, not_after: None, key })
    }

    /// When it ends, if that is within this time from now, or over; for people.
    #[must_use]
    pub fn ending(&self, now: u64, within: u64) -> Option<String> {
        let not_after = self.not_after.filter(|not_after| now.saturating_add(within) >= *not_after)?;
        let (name, at) = (&self.name, shown_time(not_after));
        Some(if now >= not_after { format!("key {name} ended at {at}") } else { format!("key {name} ends at {at}") })
    }
}

/// Whose signatures count.
#[derive(Clone, Debug, PartialEq)]
pub struct Signatures {
    /// What is not signed is refused.
    pub required: bool,
    /// What a signature must be for; none: any pool.
    pub pools: Option<BTreeSet<String>>,
    /// Each of these keys will do.
    pub keys: Vec<TrustedKey>,
}

/// Who signed a configuration, and what for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signed {
    /// The key, as the policy calls it.
    pub key: String,
    /// Its id, as minisign prints it.
    pub key_id: String,
    /// The pool that it was signed for.
    pub pool: String,
    /// A version that a node has proven is not followed by a lower one of its pool.
    pub sequence: u64,
    /// From then on it is not taken up, seconds since 1970.
    pub expires: u64,
    /// The same, for the key's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_not_after: Option<u64>,
}

impl Signed {
    /// Why it is not taken up now, if it is not; `proven` is the highest sequence that this node has proven of its pool.
    #[must_use]
    pub fn out_of_date(&self, proven: Option<u64>, now_seconds: u64) -> Option<String> {
        let Self { key, pool, sequence, expires, key_not_after, .. } = self;
        if now_seconds >= *expires {
            let at = shown_time(*expires);
            return Some(format!(
                "the node's policy: signature: it expired at {at}: sign it again with a later expires="
            ));
        }
        if let Some(ended) = key_not_after.filter(|ended| now_seconds >= *ended) {
            let at = shown_time(ended);
            return Some(format!("the node's policy: signature: key {key} ended at {at}: sign it with another key"));
        }
        let proven = proven.filter(|proven| sequence < proven)?;
        Some(format!(
            "the node's policy: signature: sequence {sequence} of pool {pool} is lower than {proven}, which this node has proven: \
             sign it again with a higher sequence="
        ))
    }
}

/// What is signed, or has to be.
#[derive(Clone, Copy, Debug)]
pub struct Signable<'a> {
    /// The key with the KubeletConfiguration.
    pub key: &'a str,
    /// All of the payload's data.
    pub data: &'a BTreeMap<String, String>,
    /// How it would be merged.
    pub merge: &'a str,
    /// The annotation `acknowledge`.
    pub acknowledge: Option<&'a str>,
    /// The annotation `courtesy`.
    pub courtesy: Option<&'a str>,
    /// The annotation `confirm-within`.
    pub confirm_within: Option<&'a str>,
}

impl Signatures {
    /// Verifies the signature beside a payload; `None` if there is none, and none need be. Nothing is parsed before.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn verify(&self, what: &Signable<'_>) -> Result<Option<Signed>, String> {
        let name = format!("{}{KEY_SUFFIX}", what.key);
        let Some(text) = what.data.get(&name) else {
            let why = format!("there is no key {name}, and the policy requires one: push --signature");
            return if self.required { Err(why) } else { Ok(None) };
        };
        let fail = |why: String| format!("{name}: {why}");
        let bytes = what.data.get(what.key).map(String::as_bytes).unwrap_or_default();
        let (trusted, comment) = self.verified(text, bytes).map_err(fail)?;
        let comment = Comment::parse(&comment).map_err(|why| fail(format!("trusted comment: {why}")))?;
        comment.check(what).map_err(fail)?;
        self.check_pool(&comment.pool).map_err(fail)?;
        let Comment { pool, sequence, expires, .. } = comment;
        let (key, key_id, key_not_after) = (trusted.name.clone(), trusted.id.clone(), trusted.not_after);
        Ok(Some(Signed { key, key_id, pool, sequence, expires, key_not_after }))
    }

    /// The signature that was verified on a content when it was made: it counts while the policy has its key, and its pool.
    /// `None` if there is none, and none need be.
    ///
    /// # Errors
    /// Why the content is not started.
    pub fn kept(&self, signed: Option<&Signed>) -> Result<Option<Signed>, String> {
        let Some(signed) = signed else {
            let why = "no signature was verified on this content, and the policy requires one";
            return if self.required { Err(why.to_owned()) } else { Ok(None) };
        };
        let Some(trusted) = self.keys.iter().find(|key| key.id == signed.key_id) else {
            return Err(format!("signed with key {}, which the policy does not have", signed.key_id));
        };
        self.check_pool(&signed.pool)?;
        let (key, key_not_after) = (trusted.name.clone(), trusted.not_after);
        Ok(Some(Signed { key, key_not_after, ..signed.clone() }))
    }

    fn check_pool(&self, pool: &str) -> Result<(), String> {
        let Some(pools) = self.pools.as_ref().filter(|pools| !pools.contains(pool)) else { return Ok(()) };
        let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
        Err(format!("it is for pool {pool}, and this node takes those for {}", pools.join(", ")))
    }

    /// The key that signed these bytes, and the trusted comment.
    fn verified(&self, text: &str, bytes: &[u8]) -> Result<(&TrustedKey, String), String> {
        let signature = decode(text)?;
        let id = text.lines().nth(1).and_then(key_id).unwrap_or_default();
        let Some(trusted) = self.keys.iter().find(|key| key.id == id) else {
            let keys: Vec<String> = self.keys.iter().map(|key| format!("{} ({})", key.name, key.id)).collect();
            return Err(format!("signed with key {id}, which the policy does not have: {}", keys.join(", ")));
        };
        match trusted.key.verify(bytes, &signature, false) {
            Ok(()) => Ok((trusted, signature.trusted_comment().to_owned())),
            Err(Error::UnexpectedAlgorithm) => Err("it is not prehashed: sign without minisign's option -l".to_owned()),
            Err(_) => Err(format!(
                "it is not key {id}'s over these {} bytes (SHA-256 {}) and its trusted comment: sign the very bytes of the \
                 key, with their last newline",
                bytes.len(),
                sha256(bytes)
            )),
        }
    }
}

fn decode(text: &str) -> Result<Signature, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than the limit of {MAX_BYTES}", text.len()));
    }
    Signature::decode(text).map_err(|error| format!("it is no signature file of minisign: {error}"))
}

/// The key id in the first bytes of a public key or a signature: algorithm (2 bytes), id (8 bytes, the lowest first).
fn key_id(base64: &str) -> Option<String> {
    let bytes = decode_base64(base64.get(..14)?)?; // 84 bits, of which the first 80 are wanted
    let id = bytes.get(2..10)?.try_into().ok()?;
    Some(format!("{:X}", u64::from_le_bytes(id)))
}

pub(super) fn pool(word: &str) -> Result<String, String> {
    let wrong = || format!("{:?} is no name of a pool: a-z, 0-9, - and .", shown(word));
    is_subdomain(word, 253).then(|| word.to_owned()).ok_or_else(wrong)
}

/// RFC 3339 as seconds since 1970.
pub(super) fn seconds(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_second()).ok()
}

pub(super) fn shown_time(seconds: u64) -> String {
    let at = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX));
    at.map_or_else(|_| seconds.to_string(), |at| at.to_string())
}

fn shown(text: &str) -> String {
    bounded(text, 80)
}

/// What a trusted comment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// The pool that it is for.
    pub pool: String,
    /// Its place among the pool's versions.
    pub sequence: u64,
    /// From then on it is not taken up, seconds since 1970.
    pub expires: u64,
    /// The key with the bytes: another one has other flags beside it.
    key: String,
    merge: Merge,
    acknowledge: BTreeSet<String>,
    /// As the annotation has it.
    courtesy: Option<String>,
    /// The same of `confirm-within`.
    confirm_within: Option<String>,
    /// The SHA-256 of each other key.
    files: BTreeMap<String, String>,
}

const ENTRIES: [&str; 10] =
    ["kind", "key", "pool", "sequence", "expires", "merge", "acknowledge", "courtesy", "confirm", "files"];

impl Comment {
    /// Reads the trusted comment in the text of a signature file, which is not verified by that.
    ///
    /// # Errors
    /// It is no signature file, or its comment is not as it must be.
    pub fn of_file(text: &str) -> Result<Self, String> {
        let signature = decode(text)?;
        Self::parse(signature.trusted_comment()).map_err(|why| format!("trusted comment: {why}"))
    }

    /// The annotation `acknowledge` that it was signed with.
    #[must_use]
    pub fn acknowledge(&self) -> String {
        self.acknowledge.iter().cloned().collect::<Vec<_>>().join(",")
    }

    /// The annotation `courtesy` that it was signed with.
    #[must_use]
    pub fn courtesy(&self) -> Option<&str> {
        self.courtesy.as_deref()
    }

    /// The annotation `confirm-within` that it was signed with.
    #[must_use]
    pub fn confirm_within(&self) -> Option<&str> {
        self.confirm_within.as_deref()
    }

    /// Reads a trusted comment.
    ///
    /// # Errors
    /// Which entry is wrong, and what must stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries: BTreeMap<&str, &str> = BTreeMap::new();
        for entry in text.split(' ') {
            let (name, value) = entry.split_once('=').unwrap_or((entry, ""));
            if !ENTRIES.contains(&name) {
                let all = ENTRIES.map(|name| format!("{name}=")).join(" ");
                return Err(format!("{:?} is none of its entries, which are apart by one blank: {all}", shown(entry)));
            }
            if entries.insert(name, value).is_some() {
                return Err(format!("{name}= stands there twice"));
            }
        }
        let entry = |name: &'static str| entries.get(name).copied().ok_or_else(|| format!("{name}= is missing"));
        let wrong = |name: &str, value: &str, must: &str| format!("{name}={} must be {must}", shown(value));
        let kind = entry("kind")?;
        if kind != KIND {
            return Err(wrong("kind", kind, KIND));
        }
        let key = entry("key")?;
        if !is_safe_key(key) {
            return Err(wrong("key", key, "the ConfigMap's key with the signed bytes, such as kubelet"));
        }
        let duration = |name: &'static str| match entry(name)? {
            "none" => Ok(None),
            "" => Err(wrong(name, "", "none, or a duration such as 10m")),
            text => Ok(Some(text.to_owned())),
        };
        let sequence = entry("sequence")?;
        let number = sequence.parse::<u64>().ok().filter(|number| number.to_string() == sequence);
        let expires = entry("expires")?;
        Ok(Self {
            pool: pool(entry("pool")?).map_err(|why| format!("pool=: {why}"))?,
            sequence: number.ok_or_else(|| wrong("sequence", sequence, "a number"))?,
            expires: seconds(expires)
                .ok_or_else(|| wrong("expires", expires, "a time in RFC 3339, such as 2027-06-30T00:00:00Z"))?,
            key: key.to_owned(),
            merge: entry("merge")?.parse()?,
            acknowledge: match entry("acknowledge")? {
                "none" => BTreeSet::new(),
                words => words_of(words),
            },
            courtesy: duration("courtesy")?,
            confirm_within: duration("confirm")?,
            files: files(entry("files")?)?,
        })
    }

    /// Holds it against what it is beside.
    ///
    /// # Errors
    /// What is not as it was signed.
    pub fn check(&self, what: &Signable<'_>) -> Result<(), String> {
        if what.key != self.key {
            let (signed, there) = (shown(&self.key), shown(what.key));
            return Err(format!("it was signed with key={signed}, and lies beside key {there}"));
        }
        if what.merge.parse::<Merge>() != Ok(self.merge) {
            let (signed, would) = (self.merge.as_str(), shown(what.merge));
            return Err(format!("it was signed with merge={signed}, and would be merged by {would:?}"));
        }
        let annotation = words_of(what.acknowledge.unwrap_or_default());
        if annotation != self.acknowledge {
            let there = annotation.into_iter().collect::<Vec<_>>().join(",");
            let signed = self.acknowledge();
            return Err(format!(
                "it was signed with acknowledge={signed:?}, and the annotation is {:?}",
                shown(&there)
            ));
        }
        for (name, signed, there) in
            [("courtesy", self.courtesy(), what.courtesy), ("confirm", self.confirm_within(), what.confirm_within)]
        {
            if signed != there {
                let [signed, there] = [signed, there].map(|text| shown(text.unwrap_or("none")));
                return Err(format!("it was signed with {name}={signed}, and the annotation is {there:?}"));
            }
        }
        let flags = format!("{}{}", what.key, flags::KEY_SUFFIX);
        let is_foreign = |key: &&String| key.ends_with(flags::KEY_SUFFIX) && **key != flags;
        if let Some(key) = what.data.keys().chain(self.files.keys()).find(is_foreign) {
            return Err(format!(
                "key {key} has the flags of another configuration: beside this one only {flags} may be"
            ));
        }
        let others = |key: &str| key != what.key && !key.ends_with(KEY_SUFFIX);
        for (key, text) in what.data.iter().filter(|(key, _)| others(key)) {
            let found = sha256(text.as_bytes());
            match self.files.get(key) {
                Some(signed) if *signed == found => {}
                Some(_) => return Err(format!("key {key} is not what was signed (files=): its SHA-256 is {found}")),
                None => return Err(format!("key {key} was not signed: files= must have {key}:{found}")),
            }
        }
        match self.files.keys().find(|key| !what.data.contains_key(*key)) {
            Some(key) => Err(format!("key {key} was signed (files=), and is not there")),
            None => Ok(()),
        }
    }
}

fn words_of(text: &str) -> BTreeSet<String> {
    Acknowledged::parse(Some(text)).entries().map(str::to_owned).collect()
}

fn files(text: &str) -> Result<BTreeMap<String, String>, String> {
    if text == "none" {
        return Ok(BTreeMap::new());
    }
    let mut files = BTreeMap::new();
    for entry in text.split(',') {
        let is_hash = |hash: &&str| hash.len() == 64 && hash.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let pair = entry.split_once(':').filter(|(key, hash)| is_safe_key(key) && is_hash(hash));
        let (key, hash) =
            pair.ok_or_else(|| format!("files={} must be none, or KEY:SHA256,KEY:SHA256", shown(entry)))?;
        if files.insert(key.to_owned(), hash.to_owned()).is_some() {
            return Err(format!("files= has {key} twice"));
        }
    }
    Ok(files)
}
