"""Which variables make NCCL, Gloo, UCX and MPI use the network that a run asks for?

Only variables that neither the user nor the site has set are given: who sets one knows why.
"""

from collections.abc import Mapping

from jobs.run import Run
from jobs.site import Site


def network_environment(run: Run, site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to add for ``run.network``; none for a run on one node, which uses no network.

    Args:
        environment: the user's, whose variables stay as they are.
    """
    if run.nodes == 1:
        return {}
    network = site.network.ib if run.network.lower() == "ib" else site.network.eth
    interface, device = network.interface, network.device
    wanted = _infiniband(device) if run.network.lower() == "ib" else _ethernet(interface)
    if interface:
        wanted |= {
            "NCCL_SOCKET_IFNAME": interface,
            "GLOO_SOCKET_IFNAME": interface,
            "HOROVOD_GLOO_IFACE": interface,
            "OMPI_MCA_btl_tcp_if_include": interface,
        }
    wanted |= network.variables
    return {name: value for name, value in wanted.items() if name not in environment}


def _infiniband(device: str | None) -> dict[str, str]:
    wanted = {"NCCL_IB_DISABLE": "0", "OMPI_MCA_pml": "ucx"}
    if device:
        # UCX names a port, NCCL a device; "=" makes NCCL match the name whole, not as a prefix.
        ports = ",".join(name if ":" in name else f"{name}:1" for name in device.split(","))
        wanted |= {"NCCL_IB_HCA": f"={device}", "UCX_NET_DEVICES": ports}
    return wanted


def _ethernet(interface: str | None) -> dict[str, str]:
    wanted = {
        "NCCL_IB_DISABLE": "1",
        # Where UCX is built in, Open MPI would take InfiniBand by itself.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "^openib,uct,ofi,usnic",
        "UCX_TLS": "tcp,sm,self,cuda_copy,cuda_ipc",
    }
    return wanted | ({"UCX_NET_DEVICES": interface} if interface else {})
