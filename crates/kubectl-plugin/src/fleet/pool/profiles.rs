//! What cloud providers and distributions reserve on a node, by their published formulas.
//!
//! Cores, bytes and pods in; quantities out, rounded down as the providers do. Their brackets are marginal: each share is
//! of the part of the machine between the last bound and this one.

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One share of the part of `amount` below each bound (and above the last), in ten-thousandths.
fn marginal(amount: u64, brackets: &[(u64, u64)]) -> u64 {
    let (mut below, mut sum) = (0, 0_u128);
    for (bound, share) in brackets {
        let part = amount.min(*bound).saturating_sub(below);
        sum += u128::from(part) * u128::from(*share);
        below = *bound;
    }
    u64::try_from(sum / 10_000).unwrap_or(u64::MAX)
}

/// 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of all above; in millicores.
const CORES: [(u64, u64); 4] = [(1000, 600), (2000, 100), (4000, 50), (u64::MAX, 25)];

fn millicores(cores: u64, brackets: &[(u64, u64)]) -> u64 {
    marginal(cores.saturating_mul(1000), brackets)
}

/// GKE, `kube-reserved` CPU (cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes; karpenter-provider-gcp,
/// pkg/utils/utils.go). Not for shared-core machine types (e2-micro to e2-medium: 1060m).
pub(super) fn gke_cpu(cores: u64) -> String {
    format!("{}m", millicores(cores, &CORES))
}

/// GKE, `kube-reserved` memory without the 100 MiB of `evictionHard` (the same sources).
pub(super) fn gke_memory(bytes: u64) -> String {
    let brackets = [(4 * GIB, 2500), (8 * GIB, 2000), (16 * GIB, 1000), (128 * GIB, 600), (u64::MAX, 200)];
    let reserved = if bytes < GIB { 255 * MIB } else { marginal(bytes, &brackets) };
    format!("{}Mi", reserved / MIB)
}

/// EKS, `kubeReserved.cpu` of nodeadm (awslabs/amazon-eks-ami, nodeadm/internal/kubelet/config.go): GKE's brackets.
pub(super) fn eks_cpu(cores: u64) -> String {
    gke_cpu(cores)
}

/// EKS, `kubeReserved.memory` of nodeadm (the same file): 11 MiB a pod and 255 MiB.
pub(super) fn eks_memory(pods: u64) -> String {
    format!("{}Mi", pods.saturating_mul(11).saturating_add(255))
}

/// AKS, CPU (learn.microsoft.com/azure/aks/node-resource-reservations; karpenter-provider-azure, instancetype.go): 6 %, 4 %,
/// 2 % of cores three and four, 1 % above. Published up to 64 cores.
pub(super) fn aks_cpu(cores: u64) -> String {
    format!("{}m", millicores(cores, &[(1000, 600), (2000, 400), (4000, 200), (u64::MAX, 100)]))
}

/// AKS from 1.29 on, memory (the same sources): 20 MiB a pod and 50 MiB, a quarter of the memory at the most.
pub(super) fn aks_memory(bytes: u64, pods: u64) -> String {
    format!("{}Mi", pods.saturating_mul(20).saturating_add(50).min(bytes / 4 / MIB))
}

/// OpenShift, `systemReserved.cpu` of `autoSizingReserved`, version 2 (machine-config-operator,
/// templates/common/_base/files/kubelet-auto-sizing.yaml): 0.06 cores and 0.012 for each core but the first, at least 0.5.
pub(super) fn openshift_cpu(cores: u64) -> String {
    format!("{}m", cores.saturating_sub(1).saturating_mul(12).saturating_add(60).max(500))
}

/// OpenShift, `systemReserved.memory` of `autoSizingReserved` (the same file), of whole GiB and rounded to them. It is a
/// little less above 128 GiB than below, as there.
pub(super) fn openshift_memory(bytes: u64) -> String {
    let hundredths = match bytes / GIB {
        0..=8 => 100,
        size @ 9..=128 => 100 + (size - 8) * 6,
        size => 772 + (size - 120) * 2,
    };
    format!("{}Gi", (hundredths + 50) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cores, GiB: CPU and memory of GKE, CPU of EKS, CPU of AKS and memory at 30, 110 and 250 pods, CPU and memory of OpenShift.
    /// From the published formulas, worked by hand, on nominal sizes.
    const GOLDEN: [(u64, u64, &str); 8] = [
        (1, 2, "60m 512Mi 60m 60m 512Mi 512Mi 512Mi 500m 1Gi"),
        (2, 4, "70m 1024Mi 70m 100m 650Mi 1024Mi 1024Mi 500m 1Gi"),
        (2, 8, "70m 1843Mi 70m 100m 650Mi 2048Mi 2048Mi 500m 1Gi"),
        (4, 16, "80m 2662Mi 80m 140m 650Mi 2250Mi 4096Mi 500m 1Gi"),
        (8, 32, "90m 3645Mi 90m 180m 650Mi 2250Mi 5050Mi 500m 2Gi"),
        (16, 64, "110m 5611Mi 110m 260m 650Mi 2250Mi 5050Mi 500m 4Gi"),
        (64, 256, "230m 12165Mi 230m 740m 650Mi 2250Mi 5050Mi 816m 10Gi"),
        (96, 384, "310m 14786Mi 310m 1060m 650Mi 2250Mi 5050Mi 1200m 13Gi"),
    ];

    #[test]
    fn golden_tables() {
        for (cores, gib, expected) in GOLDEN {
            let bytes = gib * GIB;
            let mut all = vec![gke_cpu(cores), gke_memory(bytes), eks_cpu(cores), aks_cpu(cores)];
            all.extend([30, 110, 250].map(|pods| aks_memory(bytes, pods)));
            all.extend([openshift_cpu(cores), openshift_memory(bytes)]);
            assert_eq!(all.join(" "), expected, "{cores} cores, {gib} GiB");
        }
    }

    /// m5.large, m5.xlarge, m5.4xlarge and m5.24xlarge have room for so many pods.
    #[test]
    fn what_eks_reserves_goes_by_pods() {
        let expected = [(29, "574Mi"), (58, "893Mi"), (110, "1465Mi"), (234, "2829Mi"), (737, "8362Mi")];
        assert_eq!(expected.map(|(pods, _)| eks_memory(pods)), expected.map(|(_, memory)| memory.to_owned()));
    }

    #[test]
    fn the_ends_of_brackets() {
        assert_eq!(gke_memory(GIB - 1), "255Mi");
        assert_eq!([128, 129].map(|gib| openshift_memory(gib * GIB)), ["8Gi", "8Gi"]);
        assert_eq!([gke_memory(u64::MAX), gke_cpu(u64::MAX)].map(|text| text.len() > 5), [true; 2], "and no overflow");
    }
}
