"""The command scripts/hosts."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from beds import packages
from beds.addresses import HOSTS_MAX, Family, first_address, ipv4, ipv6, link_local
from beds.arguments import EPILOG_ENVIRONMENT, add_common, count, split_command
from beds.job import BedError, Job, LackingError, Rules, signalled
from beds.namespaces import Namespaces, Network, hosts
from beds.rates import edge, rate, rate_of
from beds.world import World

EPILOG = f"""\
examples:
  scripts/hosts --hosts 4 --ranks 1 -- python train.py
  scripts/hosts --hosts 2 --ranks 2 --rate 200mbit -- rdmaring bench
  scripts/hosts --hosts 6 --rate 200mbit --edge 2-3:100mbit -- rdmaring links
  scripts/hosts --hosts 2 --ipv6 -- python train.py
  scripts/hosts --hosts 2 -- sh -c 'test $RDMARING_RANK = 0 || ping -c 3 10.77.0.1'

{EPILOG_ENVIRONMENT}"""


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/hosts",
        usage="%(prog)s [--hosts N] [--ranks M] [OPTIONS] -- COMMAND [ARGUMENTS...]",
        description="Run COMMAND once per rank on hosts that are network namespaces of this machine, joined by a "
        "bridge. Nothing of them stays, however this script ends.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_common(parser, "--hosts", "hosts", HOSTS_MAX)
    parser.add_argument("--rate", type=rate, help="hold each host's link to this rate, both directions: 200mbit")
    parser.add_argument(
        "--rate-of", type=rate_of, action="append", default=[], metavar="HOST:RATE", help="the link of one host"
    )
    parser.add_argument(
        "--edge",
        type=edge,
        action="append",
        default=[],
        metavar="FROM-TO:RATE",
        help="only what host FROM sends to host TO",
    )
    parser.add_argument(
        "--link-local", action="store_true", help="no addresses but link-local ones of IPv6 (and loopback's)"
    )
    parser.add_argument(
        "--mtu", type=count(65521, 1280), default=1500, help="of all links, 1280 to 65521; default 1500"
    )
    parser.add_argument("--print", action="store_true", help="say on standard error who is where and at which rate")
    arguments = parser.parse_args(argv)
    for host in [host for host, _ in arguments.rate_of] + [host for each in arguments.edge for host in each[:2]]:
        if host >= arguments.hosts:
            parser.error(f"there is no host {host}: --hosts is {arguments.hosts}, and hosts count from 0")
    return arguments


def _network(arguments: argparse.Namespace) -> Network:
    family = Family.IPV6 if arguments.ipv6 else Family.BOTH
    rates: list[int | None] = [arguments.rate] * arguments.hosts
    for host, bit_s in arguments.rate_of:
        rates[host] = bit_s
    return Network(
        family=Family.LINK_LOCAL if arguments.link_local else family,
        mtu=arguments.mtu,
        rates_bit_s=rates,
        edges_bit_s={(source, to): bit_s for source, to, bit_s in arguments.edge},
    )


def _describe(network: Network, world: World, names: Sequence[str]) -> str:
    lines = []
    for host, name in enumerate(names):
        addresses = [link_local(host)]
        if network.family != Family.LINK_LOCAL:
            addresses.insert(0, ipv6(host))
        if network.family == Family.BOTH:
            addresses.insert(0, ipv4(host))
        ranks = [str(rank) for rank in range(world.size) if world.host_of(rank) == host]
        bit_s = network.rates_bit_s[host]
        at = "not shaped" if bit_s is None else f"{bit_s / 1e6:g} Mbit/s"
        lines.append(f"{name}: rank {', '.join(ranks)}; {', '.join(addresses)}; {at}")
    for (source, to), bit_s in network.edges_bit_s.items():
        lines.append(f"{names[source]} to {names[to]}: {bit_s / 1e6:g} Mbit/s")
    return "\n".join([*lines, f"rendezvous: {world.rendezvous}"])


def main(argv: Sequence[str]) -> int:
    """The exit status: see EPILOG_ENVIRONMENT."""
    options, command = split_command(argv)
    arguments = _arguments(options)
    network = _network(arguments)
    names = [f"host{host}" for host in range(network.hosts)]
    addresses = [first_address(network.family, host) for host in range(network.hosts)]
    world = World(network.hosts, arguments.ranks, arguments.interleave, addresses)
    if arguments.print:
        print(_describe(network, world, names), file=sys.stderr, flush=True)
        if not command:
            return 0
    if not command:
        print("scripts/hosts: no COMMAND: write it behind --, as in scripts/hosts -- hostname", file=sys.stderr)
        return 2
    try:
        if os.geteuid() != 0:
            raise LackingError("making network namespaces needs root: run it with sudo")
        packages.need(packages.HOSTS)
        take = signalled()
        with Namespaces(network) as beds:
            rules = Rules(arguments.grace, arguments.timeout)
            return Job(hosts(beds, network, names, world.ranks(command)), rules, take).run()
    except BedError as error:
        print(f"scripts/hosts: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:
        return 128 + signal.SIGPIPE  # nobody reads what we write
