"""Kernels as PTX text, for the oldest target that this GPU's drivers still accept."""

LAUNCHABLE = "empty"


def head(cuda):
    """The target, by compute capability: drivers drop old targets, and old drivers do not have new ones."""
    major, minor = cuda.attribute(75), cuda.attribute(76)
    capability = 10 * major + minor
    for least, version, target in ((90, "7.8", "sm_90"), (80, "7.0", "sm_80"), (75, "6.3", "sm_75")):
        if capability >= least:
            break
    else:
        version, target = "6.0", "sm_50"
    return ".version {}\n.target {}\n.address_size 64\n".format(version, target)


def empty(cuda):
    return head(cuda) + ".visible .entry empty()\n{\n\tret;\n}\n"


def variable(cuda, size):
    """A variable of `size` bytes in the GPU's memory."""
    return empty(cuda) + ".visible .global .align 16 .b8 held[{}];\n".format(size)


def many(cuda, count):
    """A module of `count` different kernels."""
    kernel = (
        ".visible .entry k{0}(.param .u64 out)\n{{\n\t.reg .u64 %p<3>;\n\t.reg .u32 %r<3>;\n"
        "\tld.param.u64 %p1, [out];\n\tmov.u32 %r1, %tid.x;\n\tmul.lo.u32 %r2, %r1, {0};\n"
        "\tst.global.u32 [%p1], %r2;\n\tret;\n}}\n"
    )
    return head(cuda) + "".join(kernel.format(number) for number in range(3, 3 + count))


def local_memory(cuda, size):
    """A kernel with `size` bytes (a multiple of 16) of local memory per thread."""
    return head(cuda) + (
        ".visible .entry spill(.param .u64 out)\n{{\n\t.local .align 16 .b8 buffer[{0}];\n"
        "\t.reg .u64 %p<6>;\n\t.reg .u32 %r<5>;\n"
        "\tld.param.u64 %p1, [out];\n\tmov.u64 %p2, buffer;\n"
        "\tmov.u32 %r1, %tid.x;\n\trem.u32 %r2, %r1, {1};\n\tmul.wide.u32 %p3, %r2, 4;\n\tadd.u64 %p4, %p2, %p3;\n"
        "\tst.local.u32 [%p4], %r1;\n"
        "\tld.global.u32 %r3, [%p1];\n\trem.u32 %r3, %r3, {1};\n\tmul.wide.u32 %p3, %r3, 4;\n\tadd.u64 %p5, %p2, %p3;\n"
        "\tld.local.u32 %r4, [%p5];\n\tst.global.u32 [%p1], %r4;\n\tret;\n}}\n"
    ).format(size, size // 4)


def device_heap(cuda):
    """A kernel that calls malloc on the device."""
    return head(cuda) + (
        ".extern .func (.param .b64 got) malloc(.param .b64 size);\n"
        ".visible .entry heap(.param .u64 out)\n{\n\t.reg .u64 %p<4>;\n\tld.param.u64 %p1, [out];\n"
        "\tmov.u64 %p2, 1024;\n\t{\n\t.param .b64 a;\n\t.param .b64 r;\n\tst.param.b64 [a], %p2;\n"
        "\tcall.uni (r), malloc, (a);\n\tld.param.b64 %p3, [r];\n\t}\n\tst.global.u64 [%p1], %p3;\n\tret;\n}\n"
    )
