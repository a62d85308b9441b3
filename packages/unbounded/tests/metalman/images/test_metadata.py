"""Metadata of images is read strictly, and the images of Machines are found in one place."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.machine import Machine
from unbounded.fetch.failures import UnusableContent
from unbounded.fetch.reference import Platform
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.images.metadata import Metadata, parse_metadata, read_disk, read_netboot
from unbounded.metalman.images.model import (
    ImageReference,
    ImageReferences,
    ImageUse,
    NetbootImageDefaults,
    PullSecret,
    references_of,
)

DIGEST = "ab" * 32
AMD64 = Platform("linux", "amd64")


def test_all_keys_are_read_and_others_left_to_others() -> None:
    text = f"""
dhcpBootImageName: shimx64.efi
bootFiles: {{bios: undionly.kpxe, arm64: efi//shimaa64.efi, http: ipxe.efi, ipxe: boot.ipxe}}
diskImageSHA256: "{DIGEST}"
version: 7
"""
    assert parse_metadata(text.encode()) == Metadata(
        {
            Loader.X64: "shimx64.efi",
            Loader.BIOS: "undionly.kpxe",
            Loader.HTTP: "ipxe.efi",
            Loader.IPXE: "boot.ipxe",
            Loader.ARM64: "efi/shimaa64.efi",
        },
        DIGEST,
    )


@pytest.mark.parametrize("signed", [False, True])
def test_an_image_with_a_template_of_statements_is_signed(tmp_path: Path, signed: bool) -> None:
    (tmp_path / "metadata.yaml").write_text("dhcpBootImageName: installer.efi\n")
    (tmp_path / "installer.efi").write_bytes(b"program")
    if signed:
        (tmp_path / "statement.tmpl").write_text("words")
    assert read_netboot(tmp_path).is_signed is signed


@pytest.mark.parametrize("text", ["", "{}", "dhcpBootImageName: null\nbootFiles: null", "other: 1"])
def test_nothing_said_is_nothing(text: str) -> None:
    assert parse_metadata(text.encode()) == Metadata()


def test_a_digest_may_say_its_algorithm() -> None:
    assert parse_metadata(f"diskImageSHA256: sha256:{DIGEST}".encode()).disk_sha256 == DIGEST


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "metadata.yaml: not YAML: "),
        ("- a", "metadata.yaml: must be a mapping, such as dhcpBootImageName: shimx64.efi"),
        ("dhcpBootImageName: 7", "dhcpBootImageName: 7 is not a path of a file below disk/"),
        ("dhcpBootImageName: ../x", "dhcpBootImageName: '../x' is not a path"),
        ("dhcpBootImageName: /x", "dhcpBootImageName: '/x' is not a path"),
        ("dhcpBootImageName: ''", "dhcpBootImageName: '' is not a path"),
        ("bootFiles: [x]", "bootFiles: must map some of bios, arm64, http, ipxe to paths"),
        (
            "bootFiles: {risc: x, x64: y}",
            "bootFiles has unknown keys 'risc', 'x64'; known keys: bios, arm64, http, ipxe",
        ),
        ("bootFiles: {bios: [x]}", r"bootFiles.bios: \['x'\] is not a path of a file"),
        ("diskImageSHA256: abc", "diskImageSHA256: must be 64 hexadecimal digits in lower case, in quotes"),
        (f"diskImageSHA256: {DIGEST.upper()}", "diskImageSHA256: must be 64 hexadecimal digits in lower case"),
        ("diskImageSHA256: " + "1" * 64, "in quotes"),
        ("a: " + "x" * 70_000, "the limit is 65536"),
        ("a: 2020-99-99", "not YAML"),
        ("[" * 60_000, "nested more than 32 deep"),
    ],
)
def test_what_is_wrong_names_its_key(text: str, said: str) -> None:
    with pytest.raises(UnusableContent, match=said):
        parse_metadata(text.encode())


@pytest.mark.slow
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_refused_or_says_nothing(content: bytes) -> None:
    try:
        read = parse_metadata(content)
    except UnusableContent as error:
        said = str(error)
    else:
        said = "metadata.yaml: "
        assert read == Metadata()
    assert said.startswith("metadata.yaml: ")


def disk(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_boot_files_have_to_be_there_as_they_are_or_as_templates(tmp_path: Path) -> None:
    said = "dhcpBootImageName: shim.efi\nbootFiles: {ipxe: boot.ipxe}\n"
    root = disk(tmp_path, metadata_yaml=said, shim_efi="x")
    with pytest.raises(UnusableContent, match=r"bootFiles.ipxe: the image has no disk/boot.ipxe"):
        read_netboot(root)
    disk(tmp_path, boot_ipxe_tmpl="x")
    assert read_netboot(root).loaders == {Loader.X64: "shim.efi", Loader.IPXE: "boot.ipxe"}
    (root / "shim.efi").unlink()
    with pytest.raises(UnusableContent, match=r"dhcpBootImageName: the image has no disk/shim.efi"):
        read_netboot(root)


def test_a_netboot_image_names_its_boot_files(tmp_path: Path) -> None:
    with pytest.raises(UnusableContent, match=r"disk/metadata.yaml is missing; it names the boot files"):
        read_netboot(tmp_path)
    with pytest.raises(UnusableContent, match="dhcpBootImageName is missing, and bootFiles names no file either"):
        read_netboot(disk(tmp_path, metadata_yaml="{}"))


def test_disk_image_digest_comes_from_metadata_or_else_the_content(tmp_path: Path) -> None:
    assert read_disk(tmp_path, alone=False) == ""
    with pytest.raises(UnusableContent, match=r"it has neither disk/disk.img.zst nor disk/disk.img.gz"):
        read_disk(tmp_path, alone=True)
    disk(tmp_path, disk_img_gz="content")
    assert read_disk(tmp_path, alone=True) == hashlib.sha256(b"content").hexdigest()
    disk(tmp_path, metadata_yaml=f"diskImageSHA256: '{DIGEST}'")
    assert read_disk(tmp_path, alone=True) == DIGEST
    disk(tmp_path, metadata_yaml="diskImageSHA256: x")
    with pytest.raises(UnusableContent, match="diskImageSHA256: must be 64 hexadecimal"):
        read_disk(tmp_path, alone=True)


def machine(**pxe: object) -> Machine:
    return msgspec.convert({"metadata": {"name": "m"}, "spec": {"pxe": {"image": "r/disk:1", **pxe}}}, Machine)


REF = {"name": "s", "namespace": "unbounded-kube"}
DEFAULTS = NetbootImageDefaults("r/default:1", ("unbounded-kube", "d"))


def secret(named_by: str, name: str = "s") -> PullSecret:
    return PullSecret("unbounded-kube", name, named_by)


DISK = ImageReference("r/disk:1", AMD64)
TABLE = [
    (machine(), NetbootImageDefaults(), ImageReferences(DISK, DISK)),
    (
        machine(),
        DEFAULTS,
        ImageReferences(ImageReference("r/default:1", AMD64, secret("--default-netboot-pull-secret", "d")), DISK),
    ),
    (machine(netbootImage="r/net:1"), DEFAULTS, ImageReferences(ImageReference("r/net:1", AMD64), DISK)),
    (
        machine(netbootImage="r/net:1", netbootPullSecretRef=REF),
        NetbootImageDefaults(),
        ImageReferences(ImageReference("r/net:1", AMD64, secret("spec.pxe.netbootPullSecretRef")), DISK),
    ),
    (
        machine(netbootImage="r/net:1", pullSecretRef=REF),
        NetbootImageDefaults(),
        ImageReferences(
            ImageReference("r/net:1", AMD64, secret("spec.pxe.pullSecretRef")),
            ImageReference("r/disk:1", AMD64, secret("spec.pxe.pullSecretRef")),
        ),
    ),
    (
        machine(architecture="arm64"),
        NetbootImageDefaults(),
        ImageReferences(
            ImageReference("r/disk:1", Platform("linux", "arm64")),
            ImageReference("r/disk:1", Platform("linux", "arm64")),
        ),
    ),
    (msgspec.convert({"metadata": {"name": "m"}}, Machine), DEFAULTS, None),
]


@pytest.mark.parametrize(("given_", "defaults", "wanted"), TABLE)
def test_what_a_machine_boots_from(
    given_: Machine, defaults: NetbootImageDefaults, wanted: ImageReferences | None
) -> None:
    assert references_of(given_, defaults) == wanted


def test_what_images_are_used_for() -> None:
    one, two = ImageReferences(DISK, DISK), ImageReferences(ImageReference("r/net:1", AMD64), DISK)
    assert one.uses(DISK) == (ImageUse.NETBOOT, ImageUse.DISK)
    assert (two.uses(two.netboot), two.uses(DISK)) == ((ImageUse.NETBOOT,), (ImageUse.DISK_ALONE,))
    assert ImageReference("r/a@sha256:" + DIGEST, AMD64).is_immutable
    assert not ImageReference("r/a:1", AMD64).is_immutable
    assert not ImageReference("r/a:%", AMD64).is_immutable
