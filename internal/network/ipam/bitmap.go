package ipam

import "math/bits"

// bitmap is a set of small integers that finds its next member in constant time. Each word of a
// level is one bit of the level above, set if any of the word's bits is set.
type bitmap struct {
	levels [][]uint64
	count  int
}

func newBitmap(size int) bitmap {
	var b bitmap
	for {
		size = (size + 63) / 64
		b.levels = append(b.levels, make([]uint64, size))
		if size <= 1 {
			return b
		}
	}
}

func (b *bitmap) has(i int) bool { return b.levels[0][i/64]&(1<<(i%64)) != 0 }

func (b *bitmap) set(i int) {
	if b.has(i) {
		return
	}
	b.count++
	for _, level := range b.levels {
		level[i/64] |= 1 << (i % 64)
		i /= 64
	}
}

func (b *bitmap) clear(i int) {
	if !b.has(i) {
		return
	}
	b.count--
	for _, level := range b.levels {
		level[i/64] &^= 1 << (i % 64)
		if level[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// next returns the first member that is at least from.
func (b *bitmap) next(from int) (int, bool) {
	i := from
	for up, level := range b.levels {
		if i/64 >= len(level) {
			return 0, false
		}
		if word := level[i/64] >> (i % 64); word != 0 {
			return b.descend(up, i+bits.TrailingZeros64(word)), true
		}
		i = i/64 + 1
	}
	return 0, false
}

// descend returns the first member below bit i of a level.
func (b *bitmap) descend(level, i int) int {
	for level > 0 {
		level--
		i = i*64 + bits.TrailingZeros64(b.levels[level][i])
	}
	return i
}
