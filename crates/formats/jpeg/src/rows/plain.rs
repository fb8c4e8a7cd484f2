//! Upsampling and conversion of colours in plain Rust.

#[inline(always)]
pub(super) fn columns(row: &[u8], wide: &mut [u8]) {
    for (neighbours, out) in row.windows(3).zip(wide.as_chunks_mut::<2>().0) {
        let [before, here, after] = [neighbours[0], neighbours[1], neighbours[2]].map(u16::from);
        *out = [((3 * here + before + 1) >> 2) as u8, ((3 * here + after + 2) >> 2) as u8];
    }
}

#[inline(always)]
pub(super) fn rows(rows: [&[u8]; 2], bias: u16, wide: &mut [u8]) {
    let [near, far] = rows.map(|row| &row[1..row.len() - 1]);
    for ((&near, &far), out) in near.iter().zip(far).zip(wide) {
        *out = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
    }
}

#[inline(always)]
pub(super) fn both([near, far]: [&[u8]; 2], wide: &mut [u8]) {
    let mix = |near: u8, far: u8| 3 * u16::from(near) + u16::from(far);
    for ((near, far), out) in near.windows(3).zip(far.windows(3)).zip(wide.as_chunks_mut::<2>().0) {
        let before = mix(near[0], far[0]);
        let here = mix(near[1], far[1]);
        let after = mix(near[2], far[2]);
        *out = [((3 * here + before + 8) >> 4) as u8, ((3 * here + after + 7) >> 4) as u8];
    }
}

#[inline(always)]
pub(super) fn ycc_to_rgb([luma, blue, red]: [&[u8]; 3], out: &mut [u8]) {
    for (((&y, &cb), &cr), pixel) in luma.iter().zip(blue).zip(red).zip(out.as_chunks_mut::<3>().0) {
        let y = i32::from(y);
        let b = i32::from(cb) - 128;
        let r = i32::from(cr) - 128;
        // Factors and halves of 16 fractional bits.
        let parts =
            [(91_881 * r + 32_768) >> 16, (-22_554 * b - 46_802 * r + 32_768) >> 16, (116_130 * b + 32_768) >> 16];
        *pixel = parts.map(|part| (y + part).clamp(0, 255) as u8);
    }
}

#[inline(always)]
pub(super) fn interleave([red, green, blue]: [&[u8]; 3], out: &mut [u8]) {
    for (((&r, &g), &b), pixel) in red.iter().zip(green).zip(blue).zip(out.as_chunks_mut::<3>().0) {
        *pixel = [r, g, b];
    }
}
