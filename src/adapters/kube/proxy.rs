//! Which proxy a request takes: the kubeconfig's, else the environment's, as for the kubelet.
//!
//! Upstream: golang.org/x/net/http/httpproxy, `useProxy`. The matcher of hyper-util reads NO_PROXY as curl does, which knows no ports.
//! kube (config/file_loader.rs, v5.0) holds NO_PROXY against the proxy's own URL, and the kubeconfig's proxy too.

use std::net::IpAddr;

use hyper::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use ipnet::IpNet;

/// The proxy for this server, if any. `given` is the kubeconfig's.
///
/// # Errors
/// It cannot be used. The URL is not told, it may have a password.
pub(super) fn choose(
    given: Option<&str>,
    server: &Uri,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<Intercept>, String> {
    let given = given.filter(|url| !url.is_empty()).map(|url| ("its proxy-url", url.to_owned()));
    let from_env = || from_env(server, env).map(|url| ("HTTPS_PROXY", url));
    let Some((field, mut url)) = given.or_else(from_env) else { return Ok(None) };
    if !url.contains("://") {
        url = format!("http://{url}"); // as Go reads the environment
    }
    // Of the server it asks no more than the scheme.
    let proxy = Matcher::builder().all(url).build().intercept(server);
    let usable = proxy.filter(|proxy| {
        let uri = proxy.uri();
        let known = is_socks(uri) || matches!(uri.scheme_str(), Some("http" | "https"));
        known && uri.host().is_some_and(|host| !host.is_empty())
    });
    usable.map(Some).ok_or_else(|| format!("{field} is not the URL of a proxy that can be used: http, https, socks5"))
}

/// True of SOCKS 5, which looks up names itself either way.
pub(super) fn is_socks(proxy: &Uri) -> bool {
    matches!(proxy.scheme_str(), Some("socks5" | "socks5h"))
}

/// With this port, where the URL names none.
pub(super) fn with_port(uri: Uri, port: u16) -> Uri {
    let (Some(scheme), Some(host), None) = (uri.scheme_str(), uri.host(), uri.port()) else { return uri };
    let authority = format!("{host}:{port}");
    Uri::builder().scheme(scheme).authority(authority).path_and_query(uri.path()).build().unwrap_or(uri)
}

fn from_env(server: &Uri, env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let env = |upper: &str, lower: &str| env(upper).or_else(|| env(lower));
    if server.scheme_str() != Some("https") {
        return None;
    }
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let spared = env("NO_PROXY", "no_proxy").is_some_and(|list| spares(&list, host, server.port_u16().unwrap_or(443)));
    env("HTTPS_PROXY", "https_proxy").filter(|_| !local && !spared)
}

/// True if a NO_PROXY list names this host: `*`, an address, a network, a domain with all below it, each but `*` with or
/// without a port.
fn spares(list: &str, host: &str, port: u16) -> bool {
    let host = host.to_lowercase();
    let address = host.parse::<IpAddr>().ok();
    list.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if entry.contains('/') {
            let network = entry.parse::<IpNet>();
            return network.is_ok_and(|network| address.is_some_and(|address| network.contains(&address)));
        }
        let bare = entry.trim_matches(['[', ']']);
        if let Ok(entry) = bare.parse::<IpAddr>() {
            return address == Some(entry);
        }
        let (name, of_port) = match entry.rsplit_once(':') {
            Some((name, number)) => {
                (name.trim_matches(['[', ']']), number.parse().is_ok_and(|number: u16| number == port))
            }
            None => (entry.as_str(), true),
        };
        if let Ok(entry) = name.parse::<IpAddr>() {
            return of_port && address == Some(entry);
        }
        let name = name.strip_prefix('*').unwrap_or(name);
        let below = format!(".{}", name.trim_start_matches('.'));
        of_port && (host.ends_with(&below) || (!name.starts_with('.') && host == name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_as_go_reads_it() {
        for (list, host, spared) in [
            ("*", "a.b", true),
            ("a.b", "a.b", true),
            ("a.b", "x.a.b", true),
            ("a.b", "xa.b", false),
            (".a.b", "x.a.b", true),
            (".a.b", "a.b", false),
            ("*.a.b", "x.a.b", true),
            ("c, A.B:6443", "a.b", true),
            ("a.b:443", "a.b", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3:6443", "10.1.2.3", true),
            ("fd00::/8", "fd00::1", true),
            ("[fd00::1]:6443", "fd00::1", true),
            ("", "a.b", false),
        ] {
            assert_eq!(spares(list, host, 6443), spared, "{list} {host}");
        }
    }

    #[test]
    fn the_kubeconfigs_proxy_wins_and_loopback_needs_none() {
        let choose = |given: Option<&str>, server: &'static str, no_proxy: Option<&str>| {
            let env = |name: &str| match name {
                "no_proxy" => no_proxy.map(str::to_owned),
                "HTTPS_PROXY" => Some("http://environments:3128".to_owned()),
                _ => None,
            };
            super::choose(given, &Uri::from_static(server), env).map(|proxy| proxy.map(|proxy| proxy.uri().to_string()))
        };
        let own = "http://u:p@own:3128";
        assert_eq!(choose(Some(own), "https://127.0.0.1:6443", Some("*")).unwrap().unwrap(), "http://own:3128/");
        assert_eq!(choose(Some(own), "http://api", None).unwrap().unwrap(), "http://own:3128/");
        assert_eq!(choose(None, "https://api:6443", None).unwrap().unwrap(), "http://environments:3128/");
        assert_eq!(choose(Some(""), "https://api:6443", None).unwrap().unwrap(), "http://environments:3128/");
        assert_eq!(choose(Some("own:3128/"), "https://api:6443", None).unwrap().unwrap(), "http://own:3128/");
        for (server, no_proxy) in [
            ("https://127.0.0.1:6443", None),
            ("https://localhost", None),
            ("https://[::1]:6443", None),
            ("http://api", None),
            ("https://api:6443", Some("api")),
        ] {
            assert!(choose(None, server, no_proxy).unwrap().is_none(), "{server}");
        }
        for unusable in ["ftp://u:SECRET@own", "socks4://u:SECRET@own", "http://", ":"] {
            let why = choose(Some(unusable), "https://api:6443", None).unwrap_err();
            assert_eq!(why, "its proxy-url is not the URL of a proxy that can be used: http, https, socks5");
        }
    }

    #[test]
    fn a_port_is_named_where_there_is_none() {
        assert_eq!(with_port(Uri::from_static("socks5://[::1]"), 1080).to_string(), "socks5://[::1]:1080/");
        assert_eq!(with_port(Uri::from_static("http://[::1]:8080"), 80).to_string(), "http://[::1]:8080/");
    }
}
