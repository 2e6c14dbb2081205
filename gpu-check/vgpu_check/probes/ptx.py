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


def spin(cuda, clock, until, lengths):
    """Kernels `time_<us>us` for `lengths` {us: number}: all threads multiply and add, in rounds, until so many ticks of
    `clock` have passed (`until` is "time"), or so many rounds are done ("rounds"). The first thread adds its rounds to a
    counter: work that was done, also if others had the GPU meanwhile.
    """
    never = 1 << 62
    rounds = "".join("\tfma.rn.f32 %f{0}, %f{0}, %f5, %f6;\n".format(1 + at % 4) for at in range(64))
    kernel = (
        ".visible .entry time_{0}us(.param .u64 counter)\n.maxntid 1024, 1, 1\n{{\n"
        "\t.reg .pred %q<3>;\n\t.reg .u64 %p<6>;\n\t.reg .u32 %r<4>;\n\t.reg .f32 %f<8>;\n"
        "\tld.param.u64 %p1, [counter];\n\tmov.u64 %p2, %{1};\n\tmov.u64 %p5, 0;\n\tmov.u32 %r1, %tid.x;\n"
        "\tcvt.rn.f32.u32 %f1, %r1;\n\tmov.f32 %f2, 0f3F800000;\n\tmov.f32 %f3, 0f40000000;\n\tmov.f32 %f4, 0f40400000;\n"
        "\tmov.f32 %f5, 0f3F7F0000;\n\tmov.f32 %f6, 0f3F000000;\n"
        "again:\n{3}\tadd.u64 %p5, %p5, 1;\n\tmov.u64 %p3, %{1};\n\tsub.u64 %p4, %p3, %p2;\n"
        "\tsetp.lt.u64 %q1, %p4, {2};\n\tsetp.lt.and.u64 %q1, %p5, {4}, %q1;\n\t@%q1 bra again;\n"
        "\tadd.f32 %f1, %f1, %f2;\n\tadd.f32 %f3, %f3, %f4;\n\tadd.f32 %f7, %f1, %f3;\n"
        "\tmov.u32 %r2, %ctaid.x;\n\tor.b32 %r3, %r1, %r2;\n\tsetp.ne.u32 %q2, %r3, 0;\n\t@%q2 bra done;\n"
        "\tred.global.add.u64 [%p1], %p5;\n\tst.global.f32 [%p1+8], %f7;\ndone:\n\tret;\n}}\n"
    )
    # Both ends stand in each kernel: without the timer a round would be shorter.
    ends = {us: (number, never) if until == "time" else (never, number) for us, number in lengths.items()}
    return head(cuda) + "".join(kernel.format(us, clock, end[0], rounds, end[1]) for us, end in ends.items())


def readings(cuda, count):
    """A kernel that stores `count` readings of %globaltimer."""
    return head(cuda) + (
        ".visible .entry readings(.param .u64 out)\n{{\n\t.reg .pred %q<2>;\n\t.reg .u64 %p<3>;\n\t.reg .u32 %r<2>;\n"
        "\tld.param.u64 %p1, [out];\n\tmov.u32 %r1, 0;\n"
        "again:\n\tmov.u64 %p2, %globaltimer;\n\tst.global.u64 [%p1], %p2;\n\tadd.u64 %p1, %p1, 8;\n"
        "\tadd.u32 %r1, %r1, 1;\n\tsetp.lt.u32 %q1, %r1, {0};\n\t@%q1 bra again;\n\tret;\n}}\n"
    ).format(count)


def absences(cuda, length, least, most):
    """A kernel of `length` ns in which the first thread stores from when to when it did not run: up to `most` pairs of
    %globaltimer that are more than `least` ns apart. Before them in the memory: their number, the kernel's begin and end.
    """
    return head(cuda) + (
        ".visible .entry absences(.param .u64 out)\n.maxntid 1024, 1, 1\n{{\n"
        "\t.reg .pred %q<6>;\n\t.reg .u64 %p<9>;\n\t.reg .u32 %r<4>;\n"
        "\tld.param.u64 %p1, [out];\n\tmov.u32 %r1, %tid.x;\n\tmov.u32 %r2, %ctaid.x;\n\tor.b32 %r3, %r1, %r2;\n"
        "\tsetp.eq.u32 %q1, %r3, 0;\n\tadd.u64 %p2, %p1, 24;\n\tmov.u64 %p3, 0;\n"
        "\tmov.u64 %p4, %globaltimer;\n\tmov.u64 %p5, %p4;\n"
        "again:\n\tmov.u64 %p6, %globaltimer;\n\tsub.u64 %p7, %p6, %p5;\n"
        "\tsetp.gt.and.u64 %q2, %p7, {1}, %q1;\n\tsetp.lt.and.u64 %q3, %p3, {2}, %q2;\n\t@!%q3 bra next;\n"
        "\tst.global.u64 [%p2], %p5;\n\tst.global.u64 [%p2+8], %p6;\n\tadd.u64 %p2, %p2, 16;\n\tadd.u64 %p3, %p3, 1;\n"
        "next:\n\tmov.u64 %p5, %p6;\n\tsub.u64 %p8, %p6, %p4;\n\tsetp.lt.u64 %q4, %p8, {0};\n\t@%q4 bra again;\n"
        "\t@!%q1 bra done;\n"
        "\tst.global.u64 [%p1], %p3;\n\tst.global.u64 [%p1+8], %p4;\n\tst.global.u64 [%p1+16], %p6;\ndone:\n\tret;\n}}\n"
    ).format(length, least, most)
