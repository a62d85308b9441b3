"""Staging of a release: from its URL to the free slot, and the check that it reports its version.

A release's archive contains one directory `unbounded-agent/`, or the single executable of that name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import stat
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from yarl import URL

from unbounded.agent.interfaces import Commands, HostCommandResult
from unbounded.agent.model import NodeGoal
from unbounded.agent.node.settings import added_trust, proxies
from unbounded.agent.paths import BINARY
from unbounded.agent.upgrade import procedure
from unbounded.agent.upgrade.health import UpgradeContext
from unbounded.agent.upgrade.releases import ReleaseInfo
from unbounded.agent.upgrade.switching import discard, make_trial
from unbounded.agent.upgrade.trial import FailedRelease, Trial, TrialProgress
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.fetch.archive import Archive, Member, MemberKind, Names
from unbounded.fetch.download import Download, OnBytes, download
from unbounded.fetch.failures import NotPublished, TooLarge, Unavailable, UnusableContent
from unbounded.fetch.tree import Tree
from unbounded.fetch.unpack import StopSignal
from unbounded.fetch.web import Patience, Trust, Web, redacted_url
from unbounded.join.release_key import LARGEST_SIGNATURE, check_signature, signature_url
from unbounded.kube.logs import Log
from unbounded.kube.tasks import run_stoppable
from unbounded.operations.executor_protocol import Refusal

log = Log("agent")

VERSION_LIMIT_S: Final = 30.0
WHO: Final = "AgentUpgrade"
_ARCHIVE: Final = "agent-release.tar.gz"
_VERSION: Final = re.compile(r"unbounded-agent (\S{1,128})")
_BUSY_TRIES: Final = 20  # a forked child of this process may still have the file open for writing
_BUSY_S: Final = 0.1
# Variables of the agent's own bootloader must not reach another release.
_ENVIRONMENT: Final = {"PYINSTALLER_RESET_ENVIRONMENT": "1"}


@dataclass(frozen=True)
class TarballLimits:
    """Limits in bytes; the content of an archive may be twice the archive's own limit."""

    archive: int = 256 << 20
    executable: int = 256 << 20
    members: int = 20_000

    @property
    def unpacked(self) -> int:
        return 2 * self.archive


LIMITS: Final = TarballLimits()


def unpack_release(
    archive: Path, target: Path, *, limits: TarballLimits = LIMITS, stop: StopSignal | None = None
) -> None:
    """Unpack a release into an empty directory, with its executable at the top. Blocks.

    Raises:
        UnusableContent: it is no release, or not safe to unpack.
        TooLarge: its content exceeds a limit.
        Unavailable: the file system refuses.
    """
    with archive.open("rb") as file, closing(Tree(target)) as tree:
        reader = Archive(file, limits.unpacked, (stop or StopSignal()).check)
        shape = _Shape(limits)
        for member in reader:
            inside = shape.take(member)
            if inside is not None:
                tree.add(inside, reader)
        shape.end()


@dataclass
class _Shape:
    """Checks members while they are unpacked."""

    limits: TarballLimits
    single: bool = False
    executable: bool = False
    seen: set[Names] = field(default_factory=set)

    def take(self, member: Member) -> Member | None:
        """Return the member with its path in the slot; None for the release's own directory."""
        names = member.names
        if not names:
            return None
        if names[0] != BINARY:
            raise UnusableContent(f"it contains {'/'.join(names)!a} beside {BINARY}, where nothing else is allowed")
        if names in self.seen and member.kind is not MemberKind.FOLDER:
            raise UnusableContent(f"it contains {'/'.join(names)!a} twice")
        if len(self.seen) >= self.limits.members:
            raise TooLarge(f"it contains more than {self.limits.members} files")
        if self.single or (self.seen and len(names) == 1 and member.kind is not MemberKind.FOLDER):
            raise UnusableContent(f"it must contain only the directory {BINARY}/ or the single file {BINARY}")
        self.seen.add(names)
        return self._at_top(member) if len(names) == 1 else self._below(member)

    def _at_top(self, member: Member) -> Member | None:
        if member.kind is MemberKind.FOLDER:
            return None
        if member.kind is not MemberKind.FILE:
            raise UnusableContent(f"{BINARY} is neither a file nor a directory")
        self.single = True
        self._check_executable(member)
        return member

    def _below(self, member: Member) -> Member:
        names = member.names[1:]
        if member.kind is MemberKind.HARDLINK:
            raise UnusableContent(f"{'/'.join(member.names)!a} is a hard link")
        if names == (BINARY,):
            if member.kind is not MemberKind.FILE:
                raise UnusableContent(f"{BINARY}/{BINARY} is not a file")
            self._check_executable(member)
        return dataclasses.replace(member, names=names)

    def _check_executable(self, member: Member) -> None:
        if member.size > self.limits.executable:
            raise TooLarge(f"{BINARY} has {member.size} bytes; the limit is {self.limits.executable}")
        if not member.size:
            raise UnusableContent(f"{BINARY} is empty")
        if not member.mode & stat.S_IXUSR:
            raise UnusableContent(f"{BINARY} is not executable")
        self.executable = True

    def end(self) -> None:
        if not self.executable:
            raise UnusableContent(f"it contains neither {BINARY}/{BINARY} nor a single file {BINARY}")


@dataclass(frozen=True)
class ReleaseRequest:
    """The release that an operation requests.

    Args:
        sha256: of the archive, in lower case; empty for any.
        again: also a release that failed on this host before.
        plain: http is allowed.
        public_key: key that has to verify the release; empty where any release may run.
    """

    url: str
    operation: str
    uid: str
    sha256: str = ""
    retry_failed: bool = False
    plain: bool = False
    window_s: int = 0
    public_key: str = ""


class _Strict(Trust):
    """Trust that requires TLS even from hosts on the local network."""

    def may_be_plain(self, host: str) -> bool:  # noqa: ARG002
        return False


def web_for(*, plain: bool, spec: NodeGoal | None = None) -> Web:
    """Return the client for downloads of releases. It follows no redirect from https to http unless http is allowed.

    Args:
        spec: of the node, whose proxies and authorities are used.
    """
    trust = Trust() if plain else _Strict()
    if spec is None:
        return Web(trust, Patience(attempts=5))
    return Web(added_trust(spec.settings, trust), Patience(attempts=5), proxies=proxies(spec))


Fetch = Callable[[ReleaseRequest, Path, TarballLimits, OnBytes], Awaitable[str]]  # signature of `fetch_release`


async def stage(
    ground: UpgradeContext,
    wish: ReleaseRequest,
    on_bytes: OnBytes,
    *,
    limits: TarballLimits = LIMITS,
    fetch: Fetch | None = None,
) -> Trial:
    """Download the release into the free slot; return its record, which is on disk.

    Raises:
        Refusal: with a reason of this operation's table; nothing remains of the release.
        Transient: no slot is free, or another process holds the host's lock.
    """
    _refuse_failed(ground, wish, wish.sha256)
    ground.releases.free()
    ground.paths.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive = ground.paths.cache / _ARCHIVE
    sha256 = await (fetch or fetch_release)(wish, archive, limits, on_bytes)
    try:
        _refuse_failed(ground, wish, sha256)
        async with ground.locked(WHO):
            return await _placed(ground, wish, archive, sha256, limits)
    finally:
        archive.unlink(missing_ok=True)


def _refuse_failed(ground: UpgradeContext, wish: ReleaseRequest, sha256: str) -> None:
    failed = ground.store.failed().get(sha256)
    if failed is not None and not wish.retry_failed:
        text = (
            f"the release sha256:{sha256} ({failed.version or 'version unknown'}) failed on this host before: "
            f'{failed.cause}; retryFailedDigest: "true" retries it'
        )
        raise Refusal(procedure.FAILED_BEFORE, text)


async def fetch_release(
    wish: ReleaseRequest,
    archive: Path,
    limits: TarballLimits,
    on_bytes: OnBytes,
    *,
    spec: Callable[[], NodeGoal | None] = lambda: None,
) -> str:
    """Download the archive; return its sha256.

    Raises:
        Refusal: DownloadFailed, or UnusableRelease where the key does not verify it; no file remains.
    """
    url = redacted_url(URL(wish.url))
    desired = Download((wish.url,), wish.sha256, limits.archive, wish.plain)
    try:
        async with asyncio.timeout(procedure.FETCH_LIMIT_S), web_for(plain=wish.plain, spec=spec()) as web:
            digest = await download(web, desired, archive, on_bytes=on_bytes)
            if wish.public_key:
                await _check_signature(web, wish, archive)
    except TimeoutError as error:
        raise Refusal(procedure.DOWNLOAD_FAILED, f"{url}: not complete within {procedure.FETCH_LIMIT_S:g} s") from error
    except Refusal:
        raise
    except Failure as failure:
        raise Refusal(procedure.DOWNLOAD_FAILED, str(failure)) from failure
    finally:
        archive.with_name(archive.name + ".partial").unlink(missing_ok=True)
    log.info("release fetched", url=url, digest=str(digest))
    return digest.hex


async def _check_signature(web: Web, wish: ReleaseRequest, archive: Path) -> None:
    """Verify the signature that is published with a release. Raise Refusal where it is invalid."""
    url, signature = signature_url(wish.url), archive.with_name(f"{archive.name}.sig")
    demand = "Upgrade.PublicKey in the agent's configuration on the host requires one"
    good = False
    try:
        await download(web, Download((url,), "", LARGEST_SIGNATURE, wish.plain), signature)
        await asyncio.to_thread(_check, wish.public_key, archive, signature)
        good = True
    except NotPublished as failure:
        text = f"{redacted_url(URL(wish.url))} has no signature ({failure}), but {demand}"
        raise Refusal(procedure.UNUSABLE_RELEASE, text) from failure
    except Rejected as failure:
        text = f"{redacted_url(URL(wish.url))} has no valid signature: {failure}; {demand}"
        raise Refusal(procedure.UNUSABLE_RELEASE, text) from failure
    finally:
        _remove(signature, signature.with_name(f"{signature.name}.partial"), *(() if good else (archive,)))


def _check(key: str, archive: Path, signature: Path) -> None:
    check_signature(key, archive, signature.read_bytes())


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


async def _placed(
    ground: UpgradeContext, wish: ReleaseRequest, archive: Path, sha256: str, limits: TarballLimits
) -> Trial:
    stop = StopSignal()
    try:
        return await run_stoppable(partial(_place, ground, wish, archive, sha256, limits, stop), stop.event.set)
    except Unavailable as failure:
        raise Refusal(procedure.DOWNLOAD_FAILED, str(failure)) from failure
    except Rejected as failure:
        raise Refusal(procedure.UNUSABLE_RELEASE, str(failure)) from failure


def _place(
    ground: UpgradeContext, wish: ReleaseRequest, archive: Path, sha256: str, limits: TarballLimits, stop: StopSignal
) -> Trial:
    with ground.releases.scratch() as scratch:
        unpack_release(archive, scratch, limits=limits, stop=stop)
        colour = ground.releases.place(scratch, ReleaseInfo(sha256=sha256))
    trial = make_trial(
        ground,
        release=colour,
        version="",
        window_s=wish.window_s,
        progress=TrialProgress.STAGED,
        operation=wish.operation,
        uid=wish.uid,
        sha256=sha256,
    )
    ground.store.write(trial)
    return trial


async def verify(ground: UpgradeContext, commands: Commands, trial: Trial) -> Trial:
    """Run the staged release to read its version; return the record with the version.

    Raises:
        Refusal: it does not run; it is removed, and its digest recorded as failed.
    """
    executable = ground.releases.executable(trial.release)
    try:
        version = _version_of(await _run(commands, executable))
    except (Transient, Rejected) as failure:
        async with ground.locked(WHO):
            _remember(ground, trial, str(failure))
            discard(ground, trial)
        raise Refusal(procedure.PREFLIGHT_FAILED, str(failure)) from failure
    verified = msgspec.structs.replace(trial, progress=TrialProgress.VERIFIED, version=version)
    async with ground.locked(WHO):
        ground.releases.describe(trial.release, ReleaseInfo(version=version, sha256=trial.sha256))
        ground.store.write(verified)
    return verified


def _remember(ground: UpgradeContext, trial: Trial, cause: str) -> None:
    try:
        ground.store.add_failed(trial.sha256, FailedRelease(cause=cause))
    except Rejected as error:  # a later agent's list; the failure of this release is reported nevertheless
        log.warning("cannot record a release that failed", error=error)


async def _run(commands: Commands, executable: Path) -> HostCommandResult:
    for left in range(_BUSY_TRIES, -1, -1):
        try:
            return await commands.run(
                str(executable), "version", timeout_s=VERSION_LIMIT_S, env=_ENVIRONMENT, check=False
            )
        except Transient as failure:
            cause = failure.__cause__
            busy = isinstance(cause, OSError) and not isinstance(cause, TimeoutError)
            if not busy or not left:
                raise
        await asyncio.sleep(_BUSY_S)
    raise AssertionError


def _version_of(ran: HostCommandResult) -> str:
    output = ran.stdout.strip()
    match = _VERSION.fullmatch(output.splitlines()[0]) if output else None
    if not ran.ok:
        tail = " ".join((ran.stderr.strip() or output)[-300:].split())
        raise Rejected(f"`unbounded-agent version` of the new release ended with status {ran.status}: {tail}")
    if match is None:
        raise Rejected(f"`unbounded-agent version` of the new release printed {output[:120]!r}, which is not a version")
    return match.group(1)


def shown_progress(done: int, total: int | None) -> str:
    """Return the progress as text: `12 of 40 MiB`."""
    mib = 1 << 20
    return f"{done // mib} of {total // mib} MiB" if total else f"{done // mib} MiB"
